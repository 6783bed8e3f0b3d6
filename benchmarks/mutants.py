"""Mutation testing of the core: change some hundred places, one at a time, and check whether the tests notice.

    python benchmarks/mutants.py --count 300 --seed 0 --kept FOLDER --json docs/results/mutants.json

The places are drawn with a seed, and each file's share is proportional to its number of lines. For each mutant the
tests that run its line are run, quick ones and those about its file first, for at most `--budget` seconds. Results
are kept: a second run resumes, and repeats only mutants for which source or tests have changed. `--named` tries
the gaps that were found by hand. Survivors are listed with the change and its entry in `mutants_explained.json`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from math import inf
from pathlib import Path
from typing import Any

from mutation.making import Mutant, drawn, mutants_of
from mutation.mapping import Map, digest
from mutation.named import NAMED, named
from mutation.trying import HEAVY, Trial, Tried

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "skillmesh"
EXPLAINED = Path(__file__).with_name("mutants_explained.json")
CORE = (
    "anchors/*.py",
    "answering/answering.py",
    "learning/head.py",
    "learning/class_names/pairs.py",
    "synergy/links.py",
    "synergy/merging.py",
    "vetting/*.py",
    "module/*.py",
    "store/bank.py",
    "store/ledger.py",
    "common/config.py",
    "mesh/*.py",
    "data/*.py",
)
"""Files to mutate, in this order: numerical code first. `data/demo`, which draws pictures, is not included."""
ABOUT = (
    "agent",
    "anchors",
    "arguments",
    "ask",
    "background",
    "bank",
    "bank_matches",
    "bank_refresh",
    "biases",
    "biasing",
    "bounded_memory",
    "certs",
    "checks",
    "class_matching",
    "cli",
    "cli_learn",
    "cli_mesh",
    "compose_together",
    "continue",
    "control",
    "data_folder",
    "data_formats",
    "data_gather",
    "data_images",
    "data_inputs",
    "describe_cache",
    "exact_numbers",
    "exchanges",
    "fetch",
    "files",
    "head",
    "head2toe",
    "home",
    "hostile_images",
    "importing",
    "keys",
    "killed",
    "ledger",
    "library",
    "limits",
    "links",
    "links_hostile",
    "lookalikes",
    "lowrank",
    "mapper",
    "membership",
    "merge",
    "mesh_beside",
    "mesh_compose",
    "mesh_faults",
    "mesh_hostile",
    "mesh_links",
    "mesh_nodes",
    "mesh_protocol",
    "mesh_recipes",
    "mesh_same_answers",
    "mesh_service",
    "mesh_session",
    "mesh_tls",
    "module_format",
    "module_hostile",
    "module_size",
    "node",
    "nothing_forgotten",
    "notice",
    "odd_names",
    "partial",
    "peers",
    "probes",
    "quarantine",
    "second_teacher",
    "shelf",
    "shortlist",
    "sight",
    "support",
    "sync",
    "teachers",
    "tensors",
    "text",
    "wants",
    "wire",
)
"""The test files about the core. Tests marked `slow` are left out."""
NEAR = {
    "bank_trial": "quarantine",
    "merging": "merge",
    "config": "mesh_session",
    "pairs": "class_matching",
    "gaussians": "anchors",
    "answering": "ask",
    "format": "module",
    "card": "module",
    "folder": "data",
    "gather": "data",
    "formats": "data",
    "sources": "data",
    "protocol": "anchors",
    "gmmc": "anchors",
    "maha": "anchors",
    "sketch": "anchors",
    "identity": "keys",
    "helper": "hostile_images",
    "images": "hostile_images",
    "calling": "control",
}
"""Name of the tests about a file, if they are not named after it."""
LIMITS = "tests/project/test_limits.py"
"""Tests that read constants of all files, and therefore run none of their lines."""
EXACT = ("test_exact_numbers", "test_limits")
"""Tests about numbers of all files."""
UNSURE = 3.0
"""Seconds from which a failed test is repeated on unchanged code: it waits for processes and may be flaky."""
MOST_TESTS = 120
QUICK, FEW = 1.5, 25
"""The first FEW tests that take less than QUICK seconds run first, in a process of their own."""


@dataclass(frozen=True)
class Result:
    """The result of one mutant."""

    key: str
    file: str
    source: str
    """Hash of the file that was changed."""
    tests: str
    """Hash of the test files that were run; if it was detected, of the one that failed."""
    outcome: str
    test: str
    seconds: float


class Campaign:
    """A run over many mutants, which can be interrupted."""

    def __init__(
        self,
        kept: Path,
        root: Path = ROOT,
        source: Path = SOURCE,
        budget: float = 60.0,
        preload: Sequence[str] = HEAVY,
    ) -> None:
        self._root, self._source, self._budget, self._preload = root, source, budget, preload
        kept.mkdir(parents=True, exist_ok=True)
        self._kept, self._record = kept, kept / "results.jsonl"
        self.worker = 0
        self.reload()
        self.map = Map(root, source, kept / "map")
        self._trial: Trial | None = None
        self._shaky: set[str] = set()

    def reload(self) -> None:
        """Read the stored results of all workers."""
        self._known: dict[str, Result] = {}
        if self._record.exists():
            for line in self._record.read_text().splitlines():
                result = Result(**json.loads(line))
                self._known[result.key] = result

    def draw(self, count: int, seed: int, patterns: tuple[str, ...] = CORE) -> list[Mutant]:
        """Draw at least `count` mutants; each file's share is proportional to its number of lines."""
        files = dict.fromkeys(path for pattern in patterns for path in sorted(self._source.glob(pattern)))
        texts = {path.relative_to(self._source.parent).as_posix(): path.read_text() for path in files}
        total = sum(len(text.splitlines()) for text in texts.values())
        mutants = []
        for file, text in texts.items():
            share = -(-count * len(text.splitlines()) // total)  # rounded up: small files count too
            mutants += drawn(mutants_of(file, text), seed, share)
        return mutants

    def tests_of(self, mutant: Mutant) -> list[str]:
        """Return the tests that can detect a mutant, up to the budget: about its file and quick ones first."""
        stem = Path(mutant.file).stem
        near = (f"test_{stem}", f"test_mesh_{stem}", f"test_data_{stem}", f"test_{NEAR.get(stem, stem)}", *EXACT)
        found = self.map.tests(mutant.file, None if mutant.at_import else mutant.lines)
        if mutant.at_import:
            dotted = mutant.file.removesuffix(".py").replace("/", ".").partition(".")[2]
            found |= {t: facts for t, facts in self.map.tests_in(LIMITS).items() if f"[{dotted}." in t}
        paid: set[str] = set()

        def cost(test: str) -> float:
            fixtures = found[test]["fixtures"]
            return float(found[test]["seconds"]) + sum(s for name, s in fixtures.items() if name not in paid)

        def far(test: str) -> bool:
            return not Path(test.partition("::")[0]).stem.startswith(near)

        left, chosen = self._budget, {}
        for test in sorted(found, key=lambda t: (far(t), cost(t), t)):
            if test not in self._shaky and (price := cost(test)) <= left and len(chosen) < MOST_TESTS:
                left -= price
                paid.update(found[test]["fixtures"])
                chosen[test] = price if far(test) else 0.2 * price
        return sorted(chosen, key=lambda t: (chosen[t], t))

    def known(self, mutant: Mutant) -> Result | None:
        """Return the stored result of a mutant, if neither its file nor its tests have changed since."""
        result = self._known.get(mutant.key)
        if result is None or result.source != digest(self._source.parent / mutant.file):
            return None
        return result if result.tests == self._state_of_tests(mutant, result.test) else None

    def _state_of_tests(self, mutant: Mutant, test: str) -> str:
        """Return the hash of the tests behind a result: the one that failed, or all that passed."""
        file = test.partition("::")[0]
        if test and (self._root / file).is_file():
            return digest(self._root / file)
        tests = self.tests_of(mutant)
        files = sorted({test.partition("::")[0] for test in tests})
        state = "".join(digest(self._root / file) for file in files) + "".join(sorted(tests))
        return hashlib.sha256(state.encode()).hexdigest()[:16]

    def attempt(self, mutant: Mutant) -> Result:
        text = (self._source.parent / mutant.file).read_text()
        tried = self._met(mutant, mutant.applied(text))
        while (
            tried.outcome == "detected"
            and self._doubtful(tried.test)
            and not self._holds(mutant.file, text, tried.test)
        ):
            self._shaky.add(tried.test)
            tried = self._met(mutant, mutant.applied(text))
        sha, state = digest(self._source.parent / mutant.file), self._state_of_tests(mutant, tried.test)
        result = Result(mutant.key, mutant.file, sha, state, tried.outcome, tried.test, round(tried.seconds, 1))
        self._known[mutant.key] = result
        with self._record.open("a") as record:
            record.write(json.dumps(asdict(result)) + "\n")
        return result

    def _met(self, mutant: Mutant, text: str) -> Tried:
        """Run a few quick tests, then the others: the first, which load little, detect most mutants."""
        tests = self.tests_of(mutant)
        quick = [test for test in tests if self._seconds(test) < QUICK][:FEW]
        tried = Tried("survived", "", 0.0)
        for batch in (quick, [test for test in tests if test not in quick]):
            if batch and tried.outcome == "survived":
                further = self._run(mutant.file, text, batch)
                tried = Tried(further.outcome, further.test, tried.seconds + further.seconds)
        return tried

    def _seconds(self, test: str) -> float:
        """Return the seconds that a test takes alone, with its fixtures."""
        facts = self.map.facts(test)
        return facts["seconds"] + sum(facts["fixtures"].values()) if facts else inf

    def _run(self, file: str, text: str, tests: list[str]) -> Tried:
        if self._trial is None:
            folder = self._kept / "map"
            shared, cache = folder / "shared", folder / "skillmesh-cache"
            self._trial = Trial(
                self._root, self._source, self._kept / f"trial-{self.worker}", self._preload, shared, cache
            )
        reads_images = file.startswith(
            "skillmesh/data/"
        )  # mutants change descriptors, which must not come from a cache
        return self._trial.run(file, text, tests, 2 * self._budget, warm=not reads_images)

    def _doubtful(self, test: str) -> bool:
        facts = self.map.facts(test)
        return facts is not None and facts["seconds"] > UNSURE

    def _holds(self, file: str, text: str, test: str) -> bool:
        """Return whether a test passes now on the unchanged code."""
        return self._run(file, text, [test]).outcome == "survived"


def summary(campaign: Campaign, mutants: list[Mutant], source: Path = SOURCE) -> dict[str, Any]:
    """Return the figures of the tried mutants, and every survivor with its change and explanation."""
    explained = json.loads(EXPLAINED.read_text()) if EXPLAINED.exists() else {}
    tried = [(mutant, result) for mutant in mutants if (result := campaign.known(mutant))]
    counts = Counter(result.outcome for _, result in tried)
    noticed = counts["detected"] + counts["timeout"]
    parts: dict[str, Counter[str]] = {}
    for mutant, result in tried:
        parts.setdefault(mutant.file.removeprefix(f"{source.name}/"), Counter())[result.outcome] += 1
    return {
        "mutants": len(tried),
        "drawn": len(mutants),
        "detected": counts["detected"],
        "timeouts": counts["timeout"],
        "errors": counts["error"],
        "survived": counts["survived"],
        "share": round(noticed / len(tried), 4) if tried else None,
        "seconds": round(sum(result.seconds for _, result in tried)),
        "files": {part: dict(count) for part, count in sorted(parts.items())},
        "survivors": [
            {
                "key": mutant.key,
                "file": mutant.file,
                "line": mutant.line,
                "kind": mutant.kind,
                "change": mutant.diff((source.parent / mutant.file).read_text()),
                "why": explained.get(mutant.key, ""),
            }
            for mutant, result in tried
            if result.outcome == "survived"
        ],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300, help="mutants to draw, at least")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--seconds", type=float, default=inf, help="stop after this many seconds; a second run resumes"
    )
    parser.add_argument("--budget", type=float, default=60.0, help="maximum seconds of tests per mutant")
    parser.add_argument(
        "--kept", type=Path, default=Path("mutants-kept"), help="folder for measurements and results"
    )
    parser.add_argument("--json", type=Path, help="write the figures and survivors here")
    parser.add_argument("--named", action="store_true", help="try only the mutants that were found by hand")
    parser.add_argument("--only", default="", help="only files whose name contains this")
    parser.add_argument("--workers", type=int, default=1, help="mutants to try in parallel")
    parser.add_argument("--again", action="store_true", help="try survivors again even if nothing has changed")
    options = parser.parse_args()
    os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", SKILLMESH_TASKS="")
    began = time.monotonic()
    campaign = Campaign(options.kept.resolve(), budget=options.budget)
    files = sorted(path for name in ABOUT for path in (ROOT / "tests").glob(f"*/test_{name}.py"))
    about = [path.relative_to(ROOT).as_posix() for path in files]
    campaign.map.measure(about, _say, ["-m", "not slow"])
    for test in campaign.map.failed:
        _say(f"left out, since it fails on the unchanged code: {test}")
    mutants = named(SOURCE) if options.named else campaign.draw(options.count, options.seed)
    mutants = [mutant for mutant in mutants if options.only in mutant.file]
    # Each worker is a separate process, since it ends all its children after every mutant.
    for child in [_forked(campaign, mutants, worker, options, began) for worker in range(options.workers)]:
        os.waitpid(child, 0)
    campaign.reload()
    found = summary(campaign, mutants)
    for survivor in found["survivors"]:
        _say(f"\nsurvived: {survivor['key']} {survivor['file']}:{survivor['line']} ({survivor['kind']})")
        _say(f"{survivor['change']}\n{survivor['why'] or 'not explained'}")
    _say(
        f"\n{found['mutants']} mutants: {found['detected']} detected, {found['timeouts']} by a timeout, "
        f"{found['survived']} survived, {found['errors']} could not be tried"
    )
    if options.json:
        _write(options, found)
    return int(options.named and found["survived"] > 0)


def _forked(
    campaign: Campaign, mutants: list[Mutant], worker: int, options: argparse.Namespace, began: float
) -> int:
    """Start a worker, before anything large is loaded."""
    child = os.fork()
    if not child:
        try:
            _try_all(campaign, mutants, worker, options, began)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    return child


def _try_all(
    campaign: Campaign, mutants: list[Mutant], worker: int, options: argparse.Namespace, began: float
) -> None:
    """Try one worker's mutants without a stored result, until the time is over."""
    campaign.worker = worker
    for index in range(worker, len(mutants), options.workers):
        if time.monotonic() - began > options.seconds:
            return
        mutant, result = mutants[index], campaign.known(mutants[index])
        if result is None or result.outcome == "error" or (options.again and result.outcome == "survived"):
            result = campaign.attempt(mutant)
            _say(
                f"{index + 1}/{len(mutants)} {mutant.file}:{mutant.line} {mutant.kind}: {result.outcome} "
                f"in {result.seconds:.0f} s {result.test}"
            )


def _write(options: argparse.Namespace, found: dict[str, Any]) -> None:
    """Write the figures; those of the named mutants are stored beside the others."""
    content = json.loads(options.json.read_text()) if options.json.exists() else {}
    if options.named:
        content["named"] = {key: value for key, value in found.items() if key != "files"} | {"holes": list(NAMED)}
    else:
        from skillmesh.evaluation.provenance import provenance  # not before: trials import a changed skillmesh

        origin = provenance(" ".join(["python", "benchmarks/mutants.py", *sys.argv[1:]]), [], options.seed)
        settings = {"provenance": origin, "budget": options.budget}
        content = settings | found | ({"named": content["named"]} if "named" in content else {})
    options.json.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _say(line: str) -> None:
    print(line, flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""Tuning: the same budget for every method, validation images only, and the best setting as a method's file."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
from drawn import SMALL, draw_tasks, small
from running import Ran

from skillmesh.data.folder import ImageFile
from skillmesh.evaluation.provenance import data_hash
from skillmesh_challenge.baselines import tuning
from skillmesh_challenge.baselines.methods import Naive
from skillmesh_challenge.baselines.settings import Baseline
from skillmesh_challenge.baselines.trials import Ground, Tried
from skillmesh_challenge.baselines.tuning import BUDGET, Tuned, tune
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import METHODS, find_method
from skillmesh_challenge.record import read_record

pytestmark = pytest.mark.long

RATES = (0.0, 0.01, 0.05, math.nextafter(0.05, 1), 0.02, 0.03)


@dataclass(frozen=True)
class Tunable(Naive):
    """Six rates; the first learns nothing, two are almost equal."""

    grid: ClassVar[tuple[dict[str, Any], ...]] = tuple({"rate": rate, "head_rate": 2 * rate} for rate in RATES)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("drawn") / "tasks"
    draw_tasks(folder, 3, classes=2)
    return folder


@pytest.fixture(scope="module")
def ground(places: Path) -> Ground:
    return Ground((str(places),), first=2)


def folder_of(number: int) -> str:
    """Return the folder's name: the setting tried and a hash of all settings."""
    method = tunable(**Tunable.grid[number])
    digest = hashlib.sha256(json.dumps(method.settings(), sort_keys=True).encode()).hexdigest()[:8]
    return f"rate={RATES[number]},head_rate={2 * RATES[number]},{digest}"


def tunable(**changes: object) -> Tunable:
    made = small(Tunable, epochs=2, **changes)
    assert isinstance(made, Tunable)
    return made


@pytest.fixture(scope="module")
def swept(ground: Ground, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Tuned]:
    """A complete sweep, which tests only read."""
    out = tmp_path_factory.mktemp("tuning") / "out"
    return out, tune([tunable()], ground, out)[0]


def test_tuning_uses_the_first_tasks_and_validation_images_as_test_images(ground: Ground, places: Path):
    tasks = ground(0)
    assert [task.name for task in tasks] == ["task0", "task1"]
    assert ground.paths() == [places / "task0", places / "task1"]
    for task in tasks:
        used = [file.name for split in task.splits.values() for file in split.files]
        assert not any(name.startswith("test/") for name in used)
        assert {file.name.split("/")[0] for file in task.splits["train"].files} == {"train"}
        assert {file.name.split("/")[0] for file in task.splits["test"].files} == {"val"}
        assert len(task.splits["val"]) == 0


def test_no_test_image_is_decoded(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Their content is only hashed, to identify the data."""
    content, seen = ImageFile.content, []
    monkeypatch.setenv("SKILLMESH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(ImageFile, "content", lambda file: seen.append(file.name) or content(file))
    tune([tunable()], ground, tmp_path / "out")
    assert {name.split("/")[0] for name in seen} == {"train", "val"}


def test_every_setting_is_tried_and_the_best_is_chosen(swept: tuple[Path, Tuned]):
    out, tuned = swept
    assert [tried.changes["rate"] for tried in tuned.tried] == list(RATES)
    accuracies = [tried.final_accuracy for tried in tuned.tried]
    assert len(set(accuracies)) > 1
    assert accuracies[tuned.chosen] == max(accuracies)
    for number, tried in enumerate(tuned.tried):
        record = read_record(out / "naive" / folder_of(number))
        last = [task.final for task in record.steps[-1].tasks]
        assert tried.final_accuracy == pytest.approx(sum(last) / 2, abs=1e-6)
        assert tried.after_learning == pytest.approx(
            (record.steps[0].tasks[0].final + record.steps[1].tasks[1].final) / 2
        )
        assert tried.macs == sum(learned.total_macs for learned in record.learned)
        assert [task.images for task in record.steps[-1].tasks] == [8, 8]  # validation images


def test_the_first_of_equally_good_settings_is_chosen():
    figures = [0.2, 0.7, 0.7, 0.1, 0.7, 0.3]
    tried = tuple(Tried({"rate": rate}, accuracy, 1.0, 0.0, 1.0, 1.0) for rate, accuracy in enumerate(figures))
    assert Tuned(tunable(), tried).chosen == 1
    assert Tuned(tunable(), tried).best.rate == 1


def test_the_chosen_setting_can_be_run_as_a_method(swept: tuple[Path, Tuned]):
    out, tuned = swept
    found = find_method(str(out / "naive.toml"))
    assert found.settings() == tuned.best.settings()
    assert found.name == "naive"


def test_paths_of_weights_are_relative_to_the_method_file(swept: tuple[Path, Tuned], tmp_path: Path):
    _, tuned = swept
    moved = replace(tuned, method=tunable(weights=str(tmp_path / "weights" / "mine.safetensors")))
    tuning._write_method(tmp_path / "out" / "naive.toml", moved, ["task0"])
    assert 'weights = "../weights/mine.safetensors"' in (tmp_path / "out" / "naive.toml").read_text()
    found = Path(str(find_method(str(tmp_path / "out" / "naive.toml")).settings()["weights"]))
    assert found.resolve() == (tmp_path / "weights" / "mine.safetensors").resolve()


def test_every_trial_is_recorded(swept: tuple[Path, Tuned]):
    out, tuned = swept
    whole = json.loads((out / "tuning.json").read_text())
    assert whole["tasks"] == ["task0", "task1"]
    assert len(whole["provenance"]["data_hash"]) == 64
    entry = whole["methods"]["naive"]
    assert entry["chosen"] == tuned.chosen
    assert entry["tried"] == [vars(tried) for tried in tuned.tried]
    assert entry["settings"] == tuned.best.settings()


def test_outside_of_a_checkout_no_commit_is_recorded(swept: tuple[Path, Tuned]):
    assert tuning._entry(swept[1], [{"commit": None}])["provenance"] == {"commit": None}
    assert tuning._entry(swept[1], [{"commit": "a"}, {"commit": None}])["provenance"] == {"commit": "a"}


def test_a_stopped_sweep_resumes_and_repeats_nothing(
    swept: tuple[Path, Tuned], ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    out, made = tmp_path / "out", []

    def stops(trial, tried):
        if trial.number == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tune([tunable()], ground, out, tell=stops)
    learn = Naive.play
    monkeypatch.setattr(
        Naive, "play", lambda method, stage: made.append(stage.folder.name) or learn(method, stage)
    )
    again = tune([tunable()], ground, out)[0]
    assert made == [folder_of(number) for number in range(3, BUDGET)]
    assert [_figures(tried) for tried in again.tried] == [_figures(tried) for tried in swept[1].tried]


class Sweeps:
    """Sweeps in one folder, at one commit after another, with figures that were found before."""

    def __init__(self, known: Tuned, ground: Ground, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._known, self._ground, self.folder, self._patch = known, ground, folder, monkeypatch
        self.tried_now: list[int] = []
        monkeypatch.setattr(tuning, "run_jobs", self._results)

    def _results(self, trials, workers):
        for trial in trials:
            self.tried_now.append(trial.number)
            yield trial, replace(self._known.tried[trial.number], changes=trial.changes)

    def at(self, commit: str, grid: tuple[dict[str, Any], ...] = Tunable.grid, **changes: object) -> Tuned:
        origin = {"commit": commit, "data_hash": "same", "date": f"of {commit}"}
        self._patch.setattr(tuning, "provenance", lambda *_: origin)
        self._patch.setattr(tuning, "BUDGET", len(grid))
        self._patch.setattr(Tunable, "grid", grid)
        self.tried_now.clear()
        return tune([tunable(**changes)], self._ground, self.folder)[0]

    @property
    def origin(self) -> dict[str, str]:
        return json.loads((self.folder / "tuning.json").read_text())["methods"]["naive"]["provenance"]


@pytest.fixture
def sweeps(swept: tuple[Path, Tuned], ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sweeps:
    return Sweeps(swept[1], ground, tmp_path, monkeypatch)


def test_only_new_settings_of_a_grown_grid_are_tried(sweeps: Sweeps):
    before = sweeps.at("b", Tunable.grid[2:5])
    assert sweeps.origin["commit"] == "b"
    after = sweeps.at("a")
    assert sweeps.tried_now == [0, 1, *range(5, BUDGET)]
    assert after.tried[2:5] == before.tried
    assert [tried.changes for tried in after.tried] == list(Tunable.grid)
    assert sweeps.origin["commit"] == "a, b"
    assert find_method(str(sweeps.folder / "naive.toml")).settings() == after.best.settings()


def test_without_new_settings_results_keep_their_provenance(sweeps: Sweeps):
    sweeps.at("b", Tunable.grid[2:5])
    after = sweeps.at("a")
    assert sweeps.at("c").tried == after.tried
    assert sweeps.tried_now == []
    assert sweeps.origin["commit"] == "a, b"


def test_settings_spelled_differently_are_recognised(sweeps: Sweeps):
    sweeps.at("b", Tunable.grid[2:5])
    sweeps.at("a")
    spelled = tuple({**changes, "batch": SMALL["batch"]} for changes in Tunable.grid[1:])
    grid = ({"rate": 0.07, "head_rate": 0.1}, *spelled)
    again = sweeps.at("aa", grid)
    assert sweeps.tried_now == [0]
    assert [tried.changes for tried in again.tried] == list(grid)
    assert sweeps.origin["commit"] == "a, aa, b"
    assert sweeps.origin["date"] == "of aa"


def test_results_of_another_method_are_not_used(sweeps: Sweeps):
    sweeps.at("a")
    sweeps.at("c", batch=5)
    assert sweeps.tried_now == [*range(BUDGET)]
    assert sweeps.origin["commit"] == "c"


def test_another_method_of_the_same_name_is_tuned_again_in_the_same_folder(
    swept: tuple[Path, Tuned], ground: Ground, tmp_path: Path
):
    out = tmp_path / "out"
    shutil.copytree(swept[0], out)
    tuned = tune([tunable(head_rate=0.0, batch=5)], ground, out)[0]
    assert len(list((out / "naive").iterdir())) == 2 * BUDGET
    assert {read_record(folder).settings.method["batch"] for folder in (out / "naive").iterdir()} == {
        5,
        SMALL["batch"],
    }
    assert json.loads((out / "tuning.json").read_text())["methods"]["naive"]["settings"] == tuned.best.settings()


@pytest.mark.slow
def test_parallel_trials_give_the_same_results(swept: tuple[Path, Tuned], ground: Ground, tmp_path: Path):
    beside = tune([tunable()], ground, tmp_path / "out", workers=2)[0]
    assert [_figures(tried) for tried in beside.tried] == [_figures(tried) for tried in swept[1].tried]


def _figures(tried: Tried) -> tuple[Any, ...]:
    return tried.changes, tried.final_accuracy, tried.after_learning, tried.forgetting, tried.macs


def test_methods_tuned_one_after_another_are_in_one_file(
    swept: tuple[Path, Tuned], ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(
        tuning, "run_jobs", lambda jobs, workers: ((trial, swept[1].tried[trial.number]) for trial in jobs)
    )
    tune([tunable()], ground, tmp_path)
    tune([replace(tunable(), name="other")], ground, tmp_path)
    assert list(json.loads((tmp_path / "tuning.json").read_text())["methods"]) == ["naive", "other"]
    with pytest.raises(RunError, match=r"tuning results with tasks = .*, expected .*; name another folder"):
        tune([tunable()], replace(ground, first=1), tmp_path)
    with pytest.raises(RunError, match="tuning results with seed = 0, expected 1"):
        tune([tunable()], ground, tmp_path, seed=1)


# What is refused.


def test_every_method_has_the_same_budget():
    tuned = [method for method in METHODS.values() if isinstance(method, Baseline)]
    assert {"naive", "ewc", "psp-resnet18", "supsup-resnet50", "fecam-descriptor"} <= {m.name for m in tuned}
    for method in tuned:
        settings = method.settings_to_try()
        assert len(settings) == BUDGET, method.name
        assert len({replace(method, **changes) for changes in settings}) == BUDGET, method.name


def test_a_random_start_has_its_own_grid():
    for name in ("psp", "supsup"):
        pretrained = METHODS[name]
        assert pretrained.settings_to_try() == pretrained.grid
        random_start = replace(pretrained, start="random")
        assert random_start.settings_to_try() == pretrained.random_start_grid != pretrained.grid


def test_the_same_setting_twice_is_refused(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Tunable, "grid", (*Tunable.grid[:-1], Tunable.grid[0]))
    with pytest.raises(RunError, match="'naive' has 5 different settings to try, expected 6"):
        tune([tunable()], ground, tmp_path)


def test_a_file_in_the_folders_place_is_refused(ground: Ground, tmp_path: Path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(RunError, match=r"mine\.txt is a file or a broken link, expected a folder"):
        tune([tunable()], ground, tmp_path / "mine.txt")


def test_a_damaged_tuning_file_is_refused(swept: tuple[Path, Tuned], ground: Ground, tmp_path: Path):
    _, tuned = swept
    facts = {"tasks": ["task0", "task1"], "seed": 0, "data_hash": data_hash(ground.paths())}
    whole = tuning._entry(tuned, [{"commit": "a"}])
    broken_entries = [
        {"tried": [], "chosen": 0},
        whole | {"provenance": {}},
        whole | {"tried": [whole["tried"][0] | {"final_accuracy": None}, *whole["tried"][1:]]},
    ]
    files = [json.dumps(facts | {"methods": {"naive": entry}}) for entry in broken_entries]
    for broken in ("{", "[]", "{}", "[" * 100_000, json.dumps(facts | {"methods": [1]}), *files):
        (tmp_path / "tuning.json").write_text(broken)
        with pytest.raises(RunError, match=r"tuning\.json cannot be read .*; remove it"):
            tune([tunable()], ground, tmp_path)
        assert (tmp_path / "tuning.json").read_text() == broken


def test_another_budget_is_refused(ground: Ground, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Tunable, "grid", Tunable.grid[:-1])
    with pytest.raises(RunError, match="'naive' has 5 different settings to try, expected 6: all methods get"):
        tune([tunable()], ground, tmp_path)


def test_a_method_with_nothing_to_choose_is_refused(ground: Ground, tmp_path: Path):
    with pytest.raises(RunError, match="'sketch' has no grid"):
        tune([METHODS["sketch"]], ground, tmp_path)


def test_a_method_named_twice_is_refused(ground: Ground, tmp_path: Path):
    with pytest.raises(RunError, match="several methods are named naive"):
        tune([tunable(), tunable()], ground, tmp_path)


@pytest.mark.slow
def test_the_command_marks_the_chosen_setting(command: Callable[..., Ran], places: Path, tmp_path: Path):
    settings = "".join(f"{name} = {value!r}\n" for name, value in SMALL.items())
    (tmp_path / "mine.toml").write_text(f'kind = "naive"\n{settings}')
    out = tmp_path / "out"
    words = ("challenge", "tune", places, "--method", tmp_path / "mine.toml", "--first", 1, "--out", out)
    ran = command(*words)
    assert ran.code == 0, ran.err
    assert ran.out.count("chosen") == 1
    assert "no more were found" not in ran.err
    many = command(*words[:-4], "--first", 9, "--out", tmp_path / "many", "--device", "cuda:99")
    assert "tuning on 3 tasks instead of 9: no more were found" in many.err
    again = command(*words, "--json")
    assert again.json["mine"]["file"] == str(out / "mine.toml")
    assert len(again.json["mine"]["tried"]) == BUDGET
    run = command(
        "challenge", "run", places, "--method", out / "mine.toml", "--out", tmp_path / "run", "--no-bound"
    )
    assert run.code == 0, run.err
    assert read_record(tmp_path / "run").settings.method["name"] == "mine"

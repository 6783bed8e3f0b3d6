"""Studies that measure: their figures are those of agents that learned so, and follow what the tasks are like."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from running import Ran

from skillmesh.core import Core
from skillmesh.errors import DataError
from skillmesh.evaluation.evaluate import evaluate
from skillmesh_challenge.paper.inputs import IMAGE_BYTES
from skillmesh_challenge.studies import STUDIES, Findings, StudySettings, clusters, difficulty, images, run_study
from skillmesh_challenge.studies.difficulty import CHANCE, HEAD, NET, NetSettings, relation

pytestmark = pytest.mark.long

NewAgent = Callable[..., Core]
RESULTS = Path(__file__).parents[3] / "docs" / "results"
MEASURED = ("clusters", "images-per-class", "difficulty")
NAMES = ("dice", "greek", "latin")
FEATURES = 1280
EASY = {"red": [200, 40, 40], "blue": [40, 40, 200]}


@pytest.fixture(scope="module")
def paths(demo_tasks: Path) -> list[Path]:
    return [demo_tasks / name for name in NAMES]


@pytest.fixture(scope="module")
def settings(one_network: None, paths: list[Path]) -> StudySettings:
    return StudySettings(tuple(paths))


@pytest.fixture(scope="module")
def by_clusters(settings: StudySettings) -> Findings:
    return run_study("clusters", settings)


@pytest.fixture(scope="module")
def by_images(settings: StudySettings) -> Findings:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(images, "IMAGES", (1, 5, 20))
        patch.setattr(images, "DRAWS", 1)
        return run_study("images-per-class", settings)


@pytest.fixture(scope="module")
def by_difficulty(one_network: None, tmp_path_factory: pytest.TempPathFactory) -> Findings:
    folder = tmp_path_factory.mktemp("painted")
    painted(folder / "easy", EASY)
    painted(folder / "hopeless", {"heads": [128, 128, 128], "tails": [128, 128, 128]})
    return run_study("difficulty", StudySettings((folder,)))


@pytest.fixture
def twins(demo_tasks: Path, tmp_path: Path) -> tuple[Path, Path]:
    """Two tasks of the same images: nothing can tell them apart."""
    for name in ("one", "other"):
        shutil.copytree(demo_tasks / "dice", tmp_path / name)
    return tmp_path / "one", tmp_path / "other"


def painted(folder: Path, colours: dict[str, list[int]], train: int = 40, test: int = 20) -> Path:
    """A task of noisy squares; what a class looks like is its colour alone."""
    rng = np.random.default_rng(0)
    for split, count in {"train": train, "val": 4, "test": test}.items():
        for cls, colour in colours.items():
            (folder / split / cls).mkdir(parents=True)
            for number in range(count):
                pixels = np.clip(rng.normal(colour, 60, (32, 32, 3)), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(folder / split / cls / f"{number}.png")
    return folder


class TestClusters:
    @pytest.mark.parametrize("way", clusters.WAYS)
    @pytest.mark.parametrize("count", [5, 50])
    def test_figures_are_those_of_agents(self, by_clusters, new_agent: NewAgent, paths, way: str, count: int):
        representation, floor = clusters.WAYS[way]
        agent = new_agent(anchor="gmmc", representation=representation, variance_floor=floor, clusters=count)
        measured = evaluate(agent, paths, views=0).summary()
        (row,) = [row for row in by_clusters.rows if (row["input of gmmc"], row["k"]) == (way, count)]
        assert row["task found, %"] == pytest.approx(100 * measured["task_found_accuracy"], abs=1e-3)
        assert row["worst task, %"] == pytest.approx(
            100 * min(t["task_found_accuracy"] for t in measured["tasks"]), abs=1e-3
        )
        assert 1000 * row["KB per task"] == pytest.approx(measured["anchor_bytes"], abs=1)

    def test_bytes_and_products_grow_with_clusters_up_to_one_per_image(self, by_clusters: Findings):
        for way in clusters.WAYS:
            rows = {row["k"]: row for row in by_clusters.rows if row["input of gmmc"] == way}
            assert list(rows) == list(clusters.CLUSTERS)
            assert 1000 * rows[25]["KB per task"] == pytest.approx(25 * 4 * (2 * FEATURES + 1))
            assert rows[100]["KB per task"] < 2 * rows[50]["KB per task"]  # dice has 48 training images
            assert rows[25]["EM, MACs per task"] > 5 * rows[1]["EM, MACs per task"] > 0

    def test_training_images_fit_better(self, by_clusters: Findings):
        assert all(row["task found on training images, %"] >= row["task found, %"] for row in by_clusters.rows)
        assert any(row["task found on training images, %"] > row["task found, %"] for row in by_clusters.rows)

    def test_the_best_is_named(self):
        made = [{"k": k, "task found, %": 90 + k % 25, "KB per task": 10.0 * k} for k in (10, 25)]
        assert "k = 10 recognises tasks best, 10.0 points more than the paper's 25 with 0.4 ×" in clusters._best(
            "x", made
        )
        made[1]["task found, %"] = 101
        assert clusters._best("x", made) == "With x: the paper's k = 25 recognises tasks best."

    def test_what_cannot_be_told_apart_is_not(self, one_network, twins, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(clusters, "CLUSTERS", (25,))
        for row in run_study("clusters", StudySettings(twins)).rows:
            assert row["task found, %"] == 50
            assert row["worst task, %"] < 25  # equal scores: how a machine rounds decides for some


class TestImagesPerClass:
    def test_figures_are_those_of_agents(self, by_images: Findings, new_agent: NewAgent, paths: list[Path]):
        for row in by_images.rows[:2]:
            agent = new_agent(anchor="maha", representation="features", images_per_class=row["images per class"])
            measured = evaluate(agent, paths, views=0).summary()
            assert row["task found, %"] == pytest.approx(100 * measured["task_found_accuracy"], abs=1e-3)
            assert 1000 * row["KB per task"] == pytest.approx(measured["anchor_bytes"], abs=1)

    def test_what_is_sent_is_counted(self, by_images: Findings, paths: list[Path]):
        classes = sum(len(list((path / "train").iterdir())) for path in paths)
        rows = {row["images per class"]: row for row in by_images.rows}
        for count, row in rows.items():
            sent = classes * min(count, 8)  # there are eight training images of each class
            assert row["images in total"] == sent
            assert row["KB per task if sent as images"] == pytest.approx(sent * IMAGE_BYTES / 3000)
            assert row["covariance, MACs"] == sent * FEATURES**2
            assert 3000 * row["KB per task"] == pytest.approx(2 * FEATURES * (sent + classes) + classes, abs=3)
        assert (
            rows[5]["forward passes over the images, MACs"]
            == 5 * rows[1]["forward passes over the images, MACs"]
            > 0
        )

    def test_without_calibration_nothing_of_it_is_left(self, settings: StudySettings, monkeypatch):
        from skillmesh.backbone.backbone import load_calibration

        prior = load_calibration("lite0").prior("features", compact=False)
        left = images._without_scatter(prior).within
        assert not left.diagonal.any()
        assert not left.factor.any()
        assert prior.within.diagonal.all()
        monkeypatch.setattr(images, "IMAGES", (1,))
        monkeypatch.setattr(images, "DRAWS", 1)
        monkeypatch.setattr(images, "_without_scatter", lambda prior: prior)
        (row,) = run_study("images-per-class", settings).rows
        assert row["task found without calibration, %"] == row["task found, %"]

    def test_what_cannot_be_told_apart_is_not(self, one_network, twins, monkeypatch: pytest.MonkeyPatch):
        monkeypatch.setattr(images, "IMAGES", (5,))
        monkeypatch.setattr(images, "DRAWS", 1)
        (row,) = run_study("images-per-class", StudySettings(twins)).rows
        assert row["task found, %"] == row["task found without calibration, %"] == 50


class TestDifficulty:
    def test_an_easy_task_is_learned_and_a_hopeless_one_is_not(self, by_difficulty: Findings):
        easy, hopeless = by_difficulty.rows  # sorted by error
        assert (easy["task"], easy[NET]) == ("easy", 0)
        assert hopeless[NET] > 25
        assert hopeless[CHANCE] == pytest.approx(hopeless[NET] / 50)
        assert (easy["classes"], easy["images"], easy["images per class"]) == (2, 88, 44)

    def test_the_heads_error_is_that_of_agents(self, new_agent: NewAgent, settings: StudySettings, monkeypatch):
        monkeypatch.setattr(difficulty, "NetSettings", lambda **given: NetSettings(**given | {"epochs": 1}))
        rows = run_study("difficulty", settings).rows
        measured = {t.task: t.task_given_accuracy for t in evaluate(new_agent(), settings.folders, views=0).tasks}
        assert {row["task"]: row[HEAD] for row in rows} == pytest.approx(
            {task: 100 * (1 - right) for task, right in measured.items()}, abs=1e-3
        )

    def test_a_seed_decides_the_net(self):
        import torch

        from skillmesh_challenge.studies.small_net import train_small_net

        pixels = np.random.default_rng(0).integers(0, 256, (40, 32, 32, 3), dtype=np.uint8)
        labels = np.arange(40) % 2
        weights = [
            torch.cat(
                [
                    p.flatten()
                    for p in train_small_net(pixels, labels, 2, NetSettings(seed=s, epochs=2)).parameters()
                ]
            )
            for s in (0, 0, 1)
        ]
        assert torch.equal(weights[0], weights[1])
        assert not torch.equal(weights[0], weights[2])

    def test_large_tasks_are_thinned_and_it_is_said(self, one_network, tmp_path: Path, monkeypatch):
        monkeypatch.setattr(difficulty, "MOST_IMAGES", 30)
        painted(tmp_path / "easy", EASY, test=2)
        found = run_study("difficulty", StudySettings((tmp_path / "easy",)))
        assert (found.rows[0]["images"], found.rows[0]["images used by the small net"]) == (88, 30)
        assert "at most 30 (1 tasks had more)" in found.notes[0]

    def test_relations_of_made_up_rows(self):
        rows = [
            {"error": e, "size": s, "same": 1} for e, s in zip((1, 2, 3, 4, 5), (50, 40, 30, 10, 20), strict=True)
        ]
        assert relation(rows, "error", "size").rho == pytest.approx(-0.9)
        assert relation(rows, "error", "same") is None
        assert relation(rows[:4], "error", "size") is None  # too few

    def test_relations_reach_notes_and_figures(self, one_network, tmp_path: Path, monkeypatch):
        errors = {f"task{i}": i / 10 for i in range(5)}
        made = [
            {
                "task": name,
                "classes": i + 2,
                "images": 100 - i,
                "images used by the small net": 100 - i,
                NET: errors[name],
            }
            | {"images per class": i, HEAD: 1 - errors[name], CHANCE: 0.5}
            for i, name in enumerate(errors)
        ]
        monkeypatch.setattr(difficulty, "_row", lambda *_: made.pop())
        for name in errors:
            painted(tmp_path / name, EASY, train=2, test=1)
        found = run_study("difficulty", StudySettings((tmp_path,)))
        assert found.figures["rank correlation with the number of classes"] == 1
        assert found.summary()["figures"]["rank correlation with the number of images"] == -1
        assert "the number of images: -1.00 (p < 0.001)" in found.notes[-1]
        assert not any("guessing" in name for name in found.figures)  # all alike: nothing to be said


@pytest.mark.parametrize("name", MEASURED)
def test_without_tasks_it_says_what_to_do(name: str, command: Callable[..., Ran]):
    ran = command("challenge", "study", name)
    assert (ran.code, ran.err.count("\n")) == (1, 1)
    assert "add them after its name" in ran.err


def test_tasks_without_test_images_are_refused(one_network, settings, demo_tasks: Path, tmp_path: Path):
    for cls in ("one", "two"):
        (tmp_path / "few" / cls).mkdir(parents=True)
        shutil.copy(demo_tasks / "dice/train" / cls / "0.jpg", tmp_path / "few" / cls)
    with pytest.raises(DataError, match="no test images in few"):
        run_study("clusters", replace(settings, folders=(tmp_path / "few",)))


def test_a_class_that_cannot_be_read_is_refused(one_network, settings, tiny_tasks: Path, tmp_path: Path):
    shutil.copytree(tiny_tasks / "dice", tmp_path / "dice")
    for file in next((tmp_path / "dice/train").iterdir()).iterdir():
        file.write_bytes(b"broken")
    with pytest.raises(DataError, match="'dice' has a class without readable training images"):
        run_study("clusters", replace(settings, folders=(tmp_path / "dice",)))


def test_the_command_names_data_and_seed(command: Callable[..., Ran], tiny_tasks: Path, monkeypatch):
    from skillmesh.data.folder import find_tasks
    from skillmesh.evaluation.provenance import data_hash

    monkeypatch.setattr(images, "IMAGES", (1,))
    monkeypatch.setattr(images, "DRAWS", 2)
    found = command("challenge", "study", "images-per-class", tiny_tasks, "--seed", "7", "--json").json
    assert found["provenance"]["data_hash"] == data_hash(find_tasks([tiny_tasks]))
    assert found["provenance"]["seed"] == 7
    assert STUDIES["images-per-class"].run(StudySettings((tiny_tasks,), seed=7)).rows == found["rows"]


class TestCommittedResults:
    """The docs' studies were measured apart from the docs' evaluations, on the same tasks."""

    @pytest.fixture
    def kept(self) -> Callable[[str], dict[str, Any]]:
        return lambda name: json.loads((RESULTS / f"{name}.json").read_text())

    def test_the_papers_k_finds_what_eval_found(self, kept):
        rows = {row["input of gmmc"]: row for row in kept("study-clusters")["rows"] if row["k"] == 25}
        for way, name in zip(clusters.WAYS, ("gmmc", "gmmc-floor"), strict=True):
            assert rows[way]["task found, %"] == pytest.approx(100 * kept(name)["task_found_accuracy"], abs=0.2)
            assert 1000 * rows[way]["KB per task"] == pytest.approx(kept(name)["anchor_bytes"])

    def test_the_papers_m_finds_what_eval_found(self, kept):
        (row,) = [row for row in kept("study-images-per-class")["rows"] if row["images per class"] == 5]
        assert row["task found, %"] == pytest.approx(
            100 * kept("maha")["task_found_accuracy"], abs=0.4
        )  # draws differ

    def test_heads_err_where_eval_found_them_err(self, kept):
        errors = {row["task"]: row[HEAD] for row in kept("study-difficulty")["rows"]}
        evaluated = {t["task"]: 100 * (1 - t["task_given_accuracy"]) for t in kept("views-none")["tasks"]}
        assert errors == pytest.approx(evaluated, abs=1)

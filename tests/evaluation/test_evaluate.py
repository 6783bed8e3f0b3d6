"""Evaluation: figures equal those of single predictions, and test images are never learned from."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from running import LEARNED

from skillmesh.core import Core
from skillmesh.data.demo import HIDDEN, write_demo_tasks
from skillmesh.data.demo import LEARNED as DRAWN
from skillmesh.data.inputs import as_image
from skillmesh.errors import AmbiguousTaskError, DataError, UnknownTaskError
from skillmesh.evaluation.evaluate import Evaluation, HiddenResult, auroc, evaluate, interval, open_measured

NewAgent = Callable[..., Core]


@pytest.fixture(scope="module")
def result(taught: Core, demo_tasks: Path) -> Evaluation:
    return evaluate(taught, [demo_tasks / name for name in (*LEARNED, "snowflakes")], learn=False)


@pytest.fixture
def unsplit(demo_tasks: Path, tmp_path: Path) -> Path:
    """Dice without splits, ten images per class."""
    for cls in ("one", "two", "six"):
        (tmp_path / "dice" / cls).mkdir(parents=True)
        for split, count in {"train": 8, "test": 2}.items():
            for number in range(count):
                source = demo_tasks / "dice" / split / cls / f"{number}.jpg"
                shutil.copy(source, tmp_path / "dice" / cls / f"{split}-{number}.jpg")
    return tmp_path / "dice"


def test_figures_equal_those_of_single_predictions(taught: Core, new_agent, result, demo_tasks, tmp_path):
    for figures in result.tasks:
        paths = sorted((demo_tasks / figures.task / "test").glob("*/*"))
        truth = [path.parent.name for path in paths]
        answers = [taught.answer(path) for path in paths]
        specialist = new_agent()
        taught.export(figures.task, tmp_path / "one.skill")
        specialist.import_file(tmp_path / "one.skill")
        task_given = [specialist.answer(path).best.label for path in paths]
        right_task = np.array([a.best.task == figures.task for a in answers])
        final = right_task & np.array([a.best.label == t for a, t in zip(answers, truth, strict=True)])
        unanswered = np.array([a.label is None for a in answers])
        assert figures.test_images == len(paths)
        assert figures.classes == len(set(truth))
        assert figures.task_given_accuracy == np.mean([a == t for a, t in zip(task_given, truth, strict=True)])
        assert figures.task_found_accuracy == right_task.mean()
        assert figures.final_accuracy == final.mean()
        assert figures.known_unanswered == unanswered.mean()
        assert figures.known_unknown == np.mean([a.unknown for a in answers])
        assert figures.strict_accuracy == (final & ~unanswered).mean()
        assert sum(figures.confusions.values()) == np.sum(~right_task)
        assert figures.module_bytes == (tmp_path / "one.skill").stat().st_size
    (hidden,) = result.hidden
    snow = [taught.answer(path) for path in sorted((demo_tasks / "snowflakes/test").glob("*/*"))]
    assert (hidden.task, hidden.test_images) == ("snowflakes", len(snow))
    assert hidden.unknown == np.mean([a.unknown for a in snow])
    assert hidden.unanswered == np.mean([a.label is None for a in snow])


def test_stated_confidence_equals_that_of_the_answers(taught: Core, result: Evaluation, demo_tasks: Path):
    answers = taught.answer(sorted((demo_tasks / "shapes/test").glob("*/*")))
    index = [t.task for t in result.tasks].index("shapes")
    assert np.allclose(result.stated[index][0], [a.confidence for a in answers], atol=1e-5)
    given_that_known = [a.confidence / a.known for a in answers]
    assert np.allclose(result.confidence[index][0], given_that_known, atol=1e-5)
    assert np.array_equal(result.confidence[index][1], result.stated[index][1])
    (stated,) = result.stated_hidden
    snow = taught.answer(sorted((demo_tasks / "snowflakes/test").glob("*/*")))
    assert np.allclose(stated, [a.confidence for a in snow], atol=1e-5)
    (answered,) = result.answered_hidden
    assert np.allclose(answered, [a.confidence for a in snow if a.label], atol=1e-5)


def test_images_that_are_not_sure_count_as_not_answered(
    taught: Core, demo_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    mapper = taught.mapper()[1]
    monkeypatch.setattr(mapper, "threshold", 0.8 * mapper.threshold)
    result = evaluate(taught, [demo_tasks / name for name in ("dice", "latin", "snowflakes")], learn=False)
    figures = {t.task: (t.known_unanswered, t.known_unknown) for t in result.tasks}
    figures |= {h.task: (h.unanswered, h.unknown) for h in result.hidden}
    for task, (unanswered, unknown) in figures.items():
        answers = taught.answer(sorted((demo_tasks / task / "test").glob("*/*")))
        assert unknown == np.mean([a.unknown for a in answers])
        assert unanswered == np.mean([a.unknown or a.unsure for a in answers])
    assert all(figures[task][0] > figures[task][1] + 0.1 for task in ("dice", "latin"))
    for t in result.tasks:
        assert t.strict_accuracy <= 1 - t.known_unanswered + 1e-9


def test_images_that_are_not_sure_count_as_not_answered_where_none_is_unknown(
    taught: Core, demo_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(taught.mapper()[1], "_odds", (50.0, 1.0))
    result = evaluate(taught, [demo_tasks / name for name in ("dice", "snowflakes")], learn=False)
    (known,), (hidden,), (answered,) = result.tasks, result.hidden, result.answered_hidden
    assert (known.known_unknown, hidden.unknown) == (0, 0)
    assert hidden.unanswered > 0.8
    assert len(answered) == round((1 - hidden.unanswered) * hidden.test_images)


def test_stricter_figures_are_never_higher(result: Evaluation):
    assert [t.task for t in result.tasks] == list(LEARNED)
    for t in result.tasks:
        assert 0 <= t.strict_accuracy <= t.final_accuracy <= min(t.task_given_accuracy, t.task_found_accuracy) <= 1
        assert 0 < t.anchor_bytes < t.module_bytes


def test_the_summary_averages_over_tasks(result: Evaluation):
    summary = result.summary()
    for key in (
        "task_given_accuracy",
        "task_found_accuracy",
        "final_accuracy",
        "strict_accuracy",
        "known_unanswered",
        "known_unknown",
    ):
        assert summary[key] == pytest.approx(np.mean([getattr(t, key) for t in result.tasks]), abs=1e-6)
    assert summary["module_bytes"] == np.mean([t.module_bytes for t in result.tasks])
    assert summary["unknown_auroc"] > 0.8
    (hidden,) = result.hidden
    assert summary["hidden_unanswered"] == pytest.approx(hidden.unanswered, abs=1e-6)
    assert summary["hidden_unknown"] == pytest.approx(hidden.unknown, abs=1e-6)
    assert [t["task"] for t in summary["tasks"]] == list(LEARNED)


def test_tasks_are_learned_in_turn_and_timed(new_agent: NewAgent, tiny_tasks: Path):
    agent = new_agent()
    result = evaluate(agent, [tiny_tasks / name for name in ("dice", "latin")])
    assert [m.card.task for m in agent.tasks()] == ["dice", "latin"]
    assert all(t.learn_seconds > 0 and t.answer_seconds > 0 for t in result.tasks)
    assert result.summary()["hidden"] == []
    assert "unknown_auroc" not in result.summary()


def test_hidden_tasks_are_tested_but_never_learned(new_agent: NewAgent, tiny_tasks: Path):
    agent = new_agent()
    result = evaluate(agent, [tiny_tasks / name for name in LEARNED], hide=["latin", "greek"])
    assert [m.card.task for m in agent.tasks()] == ["dice", "shapes"]
    assert [h.task for h in result.hidden] == ["latin", "greek"]
    assert [h.test_images for h in result.hidden] == [4, 4]


def test_a_folder_without_splits_gets_a_seeded_test_split(new_agent: NewAgent, unsplit: Path):
    seen: list[list[str]] = []
    for seed in (0, 0, 1):
        agent = new_agent(seed=seed)
        shown: list[str] = []
        result = evaluate(agent, [unsplit], change=lambda image: shown.append(image.name) or image)  # noqa: B023
        card = agent.bank.find("dice").card
        assert result.tasks[0].test_images == len(shown) == 6
        assert sum(card.counts) + card.validation_images == 24
        seen.append(shown)
    assert seen[0] == seen[1] != seen[2]


def test_all_images_of_an_unsplit_folder_are_tested_if_nothing_is_learned(taught: Core, unsplit: Path):
    result = evaluate(taught, [unsplit], learn=False)
    assert result.tasks[0].test_images == 30


def test_a_class_without_test_images_is_accepted(taught: Core, demo_tasks: Path, tmp_path: Path):
    shutil.copytree(demo_tasks / "dice", tmp_path / "dice")
    shutil.rmtree(tmp_path / "dice/test/one")
    figures = evaluate(taught, [tmp_path / "dice"], learn=False).tasks[0]
    assert (figures.classes, figures.test_images) == (6, 20)


def test_classes_are_matched_by_name(taught: Core, unsplit: Path):
    before = evaluate(taught, [unsplit], learn=False).tasks[0]
    assert before.task_given_accuracy > 0.8  # three of six classes, so the folder's indices are not the module's
    (unsplit / "one").rename(unsplit / "eleven")
    after = evaluate(taught, [unsplit], learn=False).tasks[0]
    assert after.task_given_accuracy < before.task_given_accuracy  # a class that the module lacks is never right


def test_a_change_is_made_to_test_images_only(new_agent: NewAgent, tiny_tasks: Path):
    grey = as_image(Image.new("RGB", (64, 64), "grey"))
    plain, changed = new_agent(), new_agent()
    before = evaluate(plain, [tiny_tasks / name for name in ("dice", "latin")])
    after = evaluate(changed, [tiny_tasks / name for name in ("dice", "latin")], change=lambda _: grey)
    assert [m.content_id for m in plain.tasks()] == [m.content_id for m in changed.tasks()]
    assert before.summary()["task_given_accuracy"] > 0.5
    assert after.summary()["task_given_accuracy"] == 0.5  # always the same class of two


def test_unreadable_test_images_do_not_count(new_agent: NewAgent, tiny_tasks: Path, tmp_path: Path):
    shutil.copytree(tiny_tasks / "dice", tmp_path / "dice")
    files = sorted((tmp_path / "dice/test").glob("*/*"))
    files[0].write_bytes(b"broken")
    assert evaluate(new_agent(), [tmp_path / "dice"]).tasks[0].test_images == 3
    for file in files:
        file.write_bytes(b"broken")
    with pytest.raises(DataError, match="no test image of 'dice' can be read"):
        evaluate(new_agent(), [tmp_path / "dice"])


def test_too_few_images_to_test_on_are_refused(new_agent: NewAgent, demo_tasks: Path, tmp_path: Path):
    for cls in ("one", "two"):
        (tmp_path / "few" / cls).mkdir(parents=True)
        shutil.copy(demo_tasks / "dice/train" / cls / "0.jpg", tmp_path / "few" / cls)
    with pytest.raises(DataError, match="leaves no test images: its classes have one or two images each"):
        evaluate(new_agent(), [tmp_path / "few"])


class TestTasksOfOneName:
    """Two teachers may teach different tasks under one name."""

    @pytest.fixture
    def dice_of_others(self, new_agent: NewAgent, tiny_tasks: Path, tmp_path: Path) -> Core:
        """An agent with dice by anna, and letters under the same name by ben."""
        agent = new_agent("carl")
        for name, task in (("anna", "dice"), ("ben", "latin")):
            teacher = new_agent(name)
            teacher.learn(tiny_tasks / task, name="dice")
            teacher.learn(tiny_tasks / "greek", name=f"letters of {name}")
            agent.ledger.trust(teacher.identity.public_key, name)
            for taught in ("dice", f"letters of {name}"):
                agent.import_file(teacher.export(taught, tmp_path / f"{name} {taught}.skill"))
        return agent

    def test_are_distinguished_by_their_teachers(self, dice_of_others: Core, tiny_tasks: Path):
        with pytest.raises(AmbiguousTaskError, match=r"2 teachers taught 'dice'; say which: dice@(anna|ben)"):
            evaluate(dice_of_others, [tiny_tasks / "dice"], learn=False)
        for teacher, folder in (("anna", "dice"), ("ben", "latin")):
            task = open_measured(tiny_tasks / folder, learn=False, name=f"dice@{teacher}")
            (measured,) = evaluate(dice_of_others, [task], learn=False).tasks
            assert (measured.task, measured.test_images) == (f"dice@{teacher}", 4)
            assert measured.task_found_accuracy == 1

    def test_are_distinguished_in_confusions(self, dice_of_others: Core, tiny_tasks: Path):
        task = open_measured(tiny_tasks / "latin", learn=False, name="dice@anna")
        (measured,) = evaluate(dice_of_others, [task], learn=False).tasks
        assert measured.confusions == {"dice@ben": 4}

    def test_mean_the_agents_own_first(self, dice_of_others: Core, tiny_tasks: Path):
        dice_of_others.learn(tiny_tasks / "shapes", name="dice")
        task = open_measured(tiny_tasks / "shapes", learn=False, name="dice")
        (measured,) = evaluate(dice_of_others, [task], learn=False).tasks
        assert measured.task_found_accuracy == 1


def test_a_module_that_arrives_during_the_measurement_changes_no_figure(
    new_agent: NewAgent, tiny_tasks: Path, skill_files: dict[str, Path], monkeypatch: pytest.MonkeyPatch
):
    agent = new_agent()
    for name in ("dice", "latin"):
        agent.learn(tiny_tasks / name)
    paths = [tiny_tasks / name for name in ("dice", "latin")]
    expected = [(t.task, t.final_accuracy, t.confusions) for t in evaluate(agent, paths, learn=False).tasks]
    describe = agent.backbone.describe

    def arriving(*args: Any, **options: Any) -> Any:
        for name in ("shapes", "greek"):
            agent.import_file(skill_files[name])
        return describe(*args, **options)

    monkeypatch.setattr(agent.backbone, "describe", arriving)
    measured = evaluate(agent, paths, learn=False)
    assert [(t.task, t.final_accuracy, t.confusions) for t in measured.tasks] == expected
    assert len(agent.tasks()) == 4


def test_an_agent_without_tasks_cannot_be_measured(new_agent: NewAgent, tiny_tasks: Path):
    for options in ({"learn": False}, {"hide": ["dice"]}):
        with pytest.raises(UnknownTaskError, match="knows no task yet"):
            evaluate(new_agent(), [tiny_tasks / "dice"], **options)


@pytest.mark.sklearn
@given(*[st.lists(st.integers(-3, 3) | st.floats(-1e6, 1e6), min_size=1, max_size=30)] * 2)
def test_auroc_is_that_of_scikit_learn(low: list[float], high: list[float]):
    from sklearn.metrics import roc_auc_score

    truth = np.repeat([0, 1], [len(low), len(high)])
    expected = roc_auc_score(truth, np.array([*low, *high], float))
    assert auroc(np.array(low, float), np.array(high, float)) == pytest.approx(expected, abs=1e-12)


def test_auroc_of_a_made_up_case():
    known, hidden = np.array([1, 2, 3], np.float32), np.array([3, 4], np.float32)
    evaluation = Evaluation(novelty_known=[known[:1], known[1:]], novelty_hidden=[hidden])
    assert evaluation.unknown_auroc() == round(5.5 / 6, 6)  # of six pairs, five are in order and one is a tie
    assert Evaluation(novelty_known=[known]).unknown_auroc() is None


def test_confidence_error_of_a_made_up_case():
    stated = np.array([0.9, 0.9, 0.9, 0.9, 1.0], np.float32)
    right = np.array([True, True, True, False, False])
    assert Evaluation(confidence=[(stated, right)]).confidence_error() == pytest.approx(0.8 * 0.15 + 0.2)
    assert Evaluation().confidence_error() is None
    assert Evaluation().summary()["final_accuracy"] is None


def test_mixed_confidence_error_of_a_made_up_case():
    """Half of the weight is on hidden tasks, whose answers are wrong; each task counts the same on its side."""
    known = [
        (np.array([0.9], np.float32), np.array([True])),
        (np.array([0.9, 0.9], np.float32), np.array([False, True])),
    ]
    hidden = [np.array(values, np.float32) for values in ([0.9], [0.1, 0.1, 0.1], [0.1])]
    # Of the weight, 1/2 and 1/6 are at 0.9, and 3/4 of the half is right; 2/6 are at 0.1.
    expected = abs((1 / 2 + 1 / 6) * 0.9 - 3 / 8) + 2 / 6 * 0.1
    evaluation = Evaluation(stated=known, stated_hidden=hidden)
    assert evaluation.mixed_confidence_error() == pytest.approx(expected, abs=1e-6)
    assert Evaluation(stated=known).mixed_confidence_error() is None
    assert Evaluation(stated_hidden=hidden).mixed_confidence_error() is None


def test_hidden_confidence_is_that_of_the_hidden_images_that_are_answered():
    hidden = [HiddenResult("a", 2, 0.5, 0.5), HiddenResult("b", 1, 0, 0), HiddenResult("c", 1, 1, 0)]
    stated = [np.array(values, np.float32) for values in ([0.25, 0.5], [1.0], [0.75])]
    answered = [np.array(values, np.float32) for values in ([0.25], [1.0], [])]
    summary = Evaluation(hidden=hidden, stated_hidden=stated, answered_hidden=answered).summary()
    assert summary["hidden_confidence"] == (0.25 + 1.0) / 2
    assert summary["hidden_unanswered"] == 0.5
    assert summary["hidden_unknown"] == pytest.approx(1 / 6, abs=1e-6)
    none = Evaluation(hidden=hidden[2:], stated_hidden=stated[2:], answered_hidden=answered[2:]).summary()
    assert none["hidden_confidence"] is None


def test_intervals_hold_the_mean_of_new_tasks_as_often_as_they_say():
    rng, true = np.random.default_rng(3), 4 / 5
    found = [interval(rng.beta(4, 1, 40), seed) for seed in range(200)]
    inside = np.mean([low <= true <= high for low, high in found])
    assert 0.9 <= inside <= 0.98
    assert interval([0.5] * 10) == (0.5, 0.5)
    assert interval([0.5] * 9) is None


@pytest.mark.slow
@pytest.mark.sklearn
def test_a_weak_mapper_shows_on_the_drawn_tasks(new_agent: NewAgent, tmp_path: Path):
    folders = write_demo_tasks(tmp_path, train=12, val=4, test=6, names=[*DRAWN, *HIDDEN])
    weak = evaluate(new_agent(anchor="gmmc", representation="features"), folders, hide=HIDDEN).summary()
    ours = evaluate(new_agent(), folders, hide=HIDDEN).summary()
    assert weak["task_found_accuracy"] < 0.95
    assert ours["task_found_accuracy"] > max(0.97, weak["task_found_accuracy"])
    assert ours["final_accuracy"] > weak["final_accuracy"]

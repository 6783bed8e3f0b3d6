"""Equivalent classes of several tasks support one another in an answer; where there are none, nothing changes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshes import Mesh, Node, answers, eventually

from skillmesh import Answer
from skillmesh.answering import answer as support
from skillmesh.answering.answer import ByEncoder, Candidate, Guess, equal_forms, sameness, supported
from skillmesh.answering.answering import GUESSES, _foremost
from skillmesh.core import Core
from skillmesh.data.demo import write_demo_tasks
from skillmesh.errors import AgentError, EncoderError
from skillmesh.learning.class_names.encoders import Letters
from skillmesh.synergy.matching import BankMatches

NewAgent = Callable[..., Core]


def candidates(*said: tuple[int, str, float], keys: str | None = None) -> list[Candidate]:
    """Return guesses of modules, each with its own teacher or, by `keys`, a letter for each module."""
    return [
        Candidate(
            module, keys[module] if keys else f"key {module}", Guess(label, f"task {module}", "t", confidence)
        )
        for module, label, confidence in said
    ]


class TestGuesses:
    def test_for_equivalent_classes_add_up_and_the_most_confident_one_is_shown(self):
        first, *rest = supported(
            candidates((0, "Spring_Rolls", 0.3), (1, "spring roll", 0.4), (2, "pizza", 0.2)), equal_forms
        )
        assert (first.label, first.task) == ("spring roll", "task 1")
        assert first.confidence == pytest.approx(0.7)
        assert [(g.label, g.confidence) for g in first.supported_by] == [("Spring_Rolls", 0.3)]
        assert [g.label for g in rest] == ["pizza"]

    def test_together_overrule_one_that_is_more_confident_than_each(self):
        found = supported(candidates((0, "pizza", 0.36), (1, "roll", 0.3), (2, "rolls", 0.28)), equal_forms)
        assert [(g.label, round(g.confidence, 2)) for g in found] == [("roll", 0.58), ("pizza", 0.36)]

    def test_do_not_overrule_one_that_is_more_confident_than_their_sum(self):
        found = supported(candidates((0, "pizza", 0.6), (1, "roll", 0.2), (2, "rolls", 0.2)), equal_forms)
        assert [g.label for g in found] == ["pizza", "roll"]

    def test_without_an_equivalent_are_unchanged_in_any_order(self):
        said = candidates((0, "pizza", 0.1), (1, "roll", 0.5), (2, "soup", 0.2))
        assert supported(said, equal_forms) == [each.guess for each in said]

    def test_of_one_task_never_support_one_another(self):
        said = candidates((0, "digit 1", 0.5), (0, "Digit_1", 0.3))
        assert supported(said, equal_forms) == [each.guess for each in said]

    def test_of_negligible_confidence_neither_give_nor_get_support(self):
        said = candidates((0, "roll", 0.9), (1, "rolls", support.LEAST / 2))
        assert supported(said, equal_forms) == [each.guess for each in said]

    def test_have_a_confidence_of_at_most_one(self):
        assert supported(candidates((0, "roll", 0.7), (1, "roll", 0.6)), equal_forms)[0].confidence == 1.0

    def test_of_one_teacher_never_overrule_another_however_many_tasks_it_taught(self):
        said = [(0, "pizza", 0.36), (1, "roll", 0.3), (2, "rolls", 0.28), (3, "Roll", 0.2)]
        found = supported(candidates(*said, keys="abbb"), equal_forms)
        assert [(g.label, g.confidence, g.supported_by) for g in found] == [("pizza", 0.36, ()), ("roll", 0.3, ())]

    def test_of_one_teacher_count_once_against_those_of_others(self):
        said = [(0, "pizza", 0.4), (1, "roll", 0.3), (2, "rolls", 0.09), (3, "Roll", 0.2)]
        first = supported(candidates(*said, keys="abcb"), equal_forms)[0]
        assert first.label == "pizza", "0.3 and 0.09 are not surer"
        first = supported(candidates(*said, keys="abbc"), equal_forms)[0]
        assert first.label == "roll", "0.3 and 0.2 are"

    def test_of_one_teacher_all_support_an_answer_of_that_teacher(self):
        said = [(0, "roll", 0.4), (1, "rolls", 0.3), (2, "Roll", 0.2), (3, "pizza", 0.1)]
        first, other = supported(candidates(*said, keys="aaab"), equal_forms)
        assert (first.label, first.confidence) == ("roll", pytest.approx(0.9))
        assert [g.task for g in first.supported_by] == ["task 1", "task 2"]
        assert (other.label, other.confidence) == ("pizza", 0.1)

    def test_of_one_teacher_can_overrule_an_answer_of_that_teacher(self):
        said = [(0, "pizza", 0.36), (1, "roll", 0.3), (2, "rolls", 0.28)]
        for keys in ("aaa", "abc"):
            found = supported(candidates(*said, keys=keys), equal_forms)
            assert [(g.label, round(g.confidence, 2)) for g in found] == [("roll", 0.58), ("pizza", 0.36)], keys

    def test_of_one_teacher_do_not_overrule_another_whose_second_guess_agrees_with_them(self):
        said = [(0, "cat", 0.3), (1, "dog", 0.02), *((2 + n, "dog", 0.06) for n in range(10))]
        found = supported(candidates(*said, keys="aa" + "m" * 10), equal_forms)
        assert found[0].label == "cat"

    def test_win_by_the_number_of_teachers_and_not_of_tasks(self):
        said = [(0, "cat", 0.1), (1, "dog", 0.2), (2, "dog", 0.1), (3, "cow", 0.02)]
        said += [(4 + n, "cow", 0.1) for n in range(5)]
        found = supported(candidates(*said, keys="abcn" + "m" * 5), equal_forms)
        assert (found[0].label, found[0].confidence) == ("dog", pytest.approx(0.3))
        said = [(0, "dog", 0.2), (1, "dog", 0.2), (2, "dog", 0.2), (3, "cat", 0.25), (4, "cat", 0.1)]
        assert supported(candidates(*said, keys="mmmab"), equal_forms)[0].label == "cat", "0.35 against one voice"
        assert max(guess.confidence for guess in found[1:]) <= found[0].confidence


@given(
    st.lists(
        st.tuples(st.integers(0, 9), st.integers(0, 4), st.sampled_from([0.5, 0.2, 0.05, 0.01, 0.009, 0.0])),
        min_size=1,
        max_size=40,
        unique_by=lambda guess: guess[:2],
    )
)
def test_guesses_that_are_left_out_would_not_be_in_any_answer(guesses: list[tuple[int, int, float]]):
    best = max(guesses, key=lambda guess: guess[2])

    def answer(kept: list[tuple[bool, float, int, int]]) -> list[Guess]:
        named = [
            Candidate(task, f"key {task % 3}", Guess(f"class {c}", f"task {task}", "", -value))
            for _, value, task, c in kept
        ]
        return supported(named, equal_forms)[:GUESSES]

    found = [(guess is not best, -guess[2], guess[0], guess[1]) for guess in guesses]
    assert answer(_foremost(found)) == answer(sorted(found, key=lambda guess: guess[:2]))


class TestNames:
    def test_are_compared_by_an_encoder_on_request(self):
        same = ByEncoder(Letters())
        assert same("strawberries", "strawberry")
        assert same("watermelon slice", "watermelon slices and")
        assert not same("digit 1", "digit 2")

    def test_are_encoded_once(self):
        class Counting(Letters):
            seen = 0

            def encode(self, texts):
                Counting.seen += len(texts)
                return super().encode(texts)

        same = ByEncoder(Counting())
        for _ in range(3):
            same("apple", "pear")
        assert Counting.seen == 2

    def test_are_compared_by_spelling_if_the_encoder_is_not_installed(self, monkeypatch: pytest.MonkeyPatch):
        def missing() -> None:
            raise EncoderError("not installed")

        monkeypatch.setattr("skillmesh.learning.class_names.encoders.load_encoder", missing)
        assert sameness("encoder") is equal_forms
        assert sameness("never") is None


class TestAnswers:
    def test_of_older_releases_are_read(self):
        old = {"label": "roll", "task": "food", "teacher": "anna", "confidence": 0.5}
        read = Answer.from_dict({"image": "a.jpg", "unknown": False, "novelty": 0.5, "guesses": [old]})
        assert read.best == Guess(**old)
        assert read.as_dict()["guesses"] == [old]
        assert (read.unsure, read.known, read.label) == (False, 1.0, "roll")

    def test_keep_their_support_through_json(self):
        guess = supported(candidates((0, "roll", 0.7), (1, "rolls", 0.2)), equal_forms)[0]
        answer = Answer("a.jpg", False, (guess,), 0.5)
        assert Answer.from_dict(json.loads(json.dumps(answer.as_dict()))) == answer
        assert answer.supported_by[0].task == "task 1"

    def test_of_banks_with_unique_names_are_bit_identical(self, taught: Core, mixed: list[Path]):
        images = _images(mixed)
        x = taught.backbone.represent(taught.backbone.describe(images).raw, taught.config.representation)
        assert taught.answer_described(x, images, "plain") == taught.answer_described(x, images, "never")


def _images(paths: list[Path]) -> list:
    from skillmesh.data.inputs import as_image

    return [as_image(path, index) for index, path in enumerate(paths)]


@pytest.fixture(scope="module")
def two_dice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return two tasks of the same classes: dice, and cubes with other images and other spellings."""
    folders = []
    for seed, name in enumerate(("dice", "cubes")):
        folder = tmp_path_factory.mktemp("two-dice")
        write_demo_tasks(folder, train=8, val=3, test=4, names=["dice"], seed=seed)
        (folder / "dice").rename(folder / name)
        folders.append(folder / name)
    for split in ("train", "val", "test"):
        for cls in sorted((folders[1] / split).iterdir()):
            cls.rename(cls.with_name(cls.name.upper()))
    return folders[0], folders[1]


@pytest.fixture(scope="module")
def twice(new_agent: NewAgent, two_dice: tuple[Path, Path]) -> Core:
    """Return an agent that has both from different teachers."""
    agent = new_agent("both")
    for name, folder in zip(("dora", "carl"), two_dice, strict=True):
        teacher = new_agent(name)
        module, _ = teacher.learn(folder)
        agent.import_bytes(teacher.bank.file_of(module))
    return agent


def test_two_teachers_of_equivalent_classes_raise_the_confidence(twice: Core, two_dice: tuple[Path, Path]):
    paths = sorted(path for task in two_dice for path in (task / "test").glob("*/*"))
    images = _images(paths)
    x = twice.backbone.represent(twice.backbone.describe(images).raw, twice.config.representation)
    alone, together = (twice.answer_described(x, images, how) for how in ("never", "plain"))
    assert sum(bool(a.supported_by) for a in together) > len(paths) / 2
    assert all(t.confidence >= a.confidence for a, t in zip(alone, together, strict=True))
    mean = [fmean(a.confidence / a.known for a in some) for some in (alone, together)]
    assert mean[1] > mean[0] + 0.1, "given that the task is known, which support does not change"
    assert [a.known for a in alone] == [a.known for a in together]
    right = [
        fmean(
            max((g.confidence for g in answer.guesses if equal_forms(g.label, path.parent.name)), default=0)
            / answer.known
            for answer, path in zip(some, paths, strict=True)
        )
        for some in (alone, together)
    ]
    assert 1 - right[1] < 0.75 * (1 - right[0]), "not only the answer, the right class has a higher confidence"
    for answer in together:
        tasks = [answer.best.task, *(g.task for g in answer.supported_by)]
        assert len(tasks) == len(set(tasks))


@pytest.mark.long
def test_one_teacher_of_the_same_classes_in_many_tasks_does_not_lower_the_confidence(
    new_agent: NewAgent, tmp_path: Path
):
    """Seven tasks of disjoint images of the same classes: more than count if classes differ."""
    agents = [new_agent("once"), new_agent("often")]
    for seed in range(7):
        write_demo_tasks(tmp_path / str(seed), train=8, val=3, test=4, names=["dice"], seed=seed)
        for agent in agents[0 if seed == 0 else 1 :]:
            agent.learn(tmp_path / str(seed) / "dice", name=f"dice {seed}")
    paths = sorted((tmp_path / "0" / "dice" / "test").glob("*/*"))
    once, often = (agent.answer(paths) for agent in agents)
    mean = [sum(a.confidence for a in some) / len(some) for some in (once, often)]
    assert mean[1] > mean[0] - 0.05, mean
    assert all(0.9 * a.known < sum(guess.confidence for guess in a.guesses) <= a.known + 1e-6 for a in often)
    assert max(len(a.supported_by) for a in often) >= 5


def test_the_command_says_who_supports_an_answer(
    twice: Core, two_dice: tuple[Path, Path], command, tmp_path: Path
):
    found = command("ask", two_dice[0] / "test", "--home", twice.home, "--json").json["answers"]
    support = [guess for answer in found for guess in answer["guesses"][0].get("supported_by", ())]
    assert {guess["task"] for guess in support} == {"dice", "cubes"}


def test_support_can_be_switched_off(
    two_dice: tuple[Path, Path], twice: Core, new_agent: NewAgent, command, tmp_path: Path
):
    silent = new_agent("silent", support="never")
    for name in ("dice", "cubes"):
        twice.export(name, tmp_path / f"{name}.skill")
        silent.import_file(tmp_path / f"{name}.skill")
    paths = sorted((two_dice[0] / "test").glob("*/*"))
    assert not any(answer.supported_by for answer in silent.answer(paths))
    assert any(answer.supported_by for answer in twice.answer(paths))
    with pytest.raises(AgentError, match="support"):
        new_agent(support="sometimes")
    assert command("init", "--home", tmp_path / "new", "--support", "never").code == 0
    assert Core(tmp_path / "new").config.support == "never"


def test_agents_of_older_releases_are_opened(new_agent: NewAgent):
    home = new_agent("older").home
    settings = json.loads((home / "agent.json").read_text())
    del settings["support"]
    (home / "agent.json").write_text(json.dumps(settings))
    assert Core(home).config.support == "plain"


@pytest.mark.slow
def test_answers_are_supported_once_both_teachers_modules_have_arrived(
    mesh: Mesh, twice: Core, two_dice: tuple[Path, Path]
) -> None:
    nodes = []
    for name, folder in zip(("anna", "bert"), two_dice, strict=True):
        home = mesh.home(name=name)
        Core(home).learn(folder)
        nodes.append(Node(home))
    mesh.nodes += nodes
    student = mesh.node(name="student")
    images = sorted((two_dice[0] / "test").glob("*/*"))
    nodes[0].start()
    student.start()
    eventually(lambda: student.live() == {"dice"})
    before = [Answer.from_dict(found) for found in answers(student, images, named=True)]
    assert not any(answer.supported_by for answer in before), "no other teacher of dice is there yet"
    nodes[1].start()
    eventually(lambda: student.status()["in_use"] == 2)
    after = [Answer.from_dict(found) for found in answers(student, images, named=True)]
    named = [[a.best, *a.supported_by] for a in after if a.supported_by]
    teachers = {tuple(guess.teacher.partition("~")[0] for guess in guesses) for guesses in named}
    assert teachers <= {("anna", "bert"), ("bert", "anna")}
    assert sum(bool(a.supported_by) for a in after) > len(images) / 2
    matches = BankMatches(lambda: Core(student.home).bank, Letters).now()
    classes = len(list((two_dice[0] / "test").iterdir()))
    assert [m.score for m in matches if equal_forms(m.learned, m.target)] == [1.0] * classes

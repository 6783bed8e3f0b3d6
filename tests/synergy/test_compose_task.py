"""Composed tasks, made without images, are modules like any other."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.core import Core
from skillmesh.errors import AgentError, CardError
from skillmesh.learning.head import Head, read_probes
from skillmesh.module import Card
from skillmesh.synergy.composition import Pick, pick

pytestmark = pytest.mark.long

ORIGIN = "ab" * 32 + ":one"
MIXED = ["shapes:*", "dice:one", "greek:omega=last letter"]


@pytest.fixture(scope="session")
def known(taught: Core) -> list[bytes]:
    """The modules of a teacher: shapes, dice, latin and greek."""
    return [taught.bank.file_of(module) for module in taught.bank]


@pytest.fixture
def student(new_agent: Callable[..., Core], known: list[bytes]) -> Core:
    """An agent without own tasks that holds another's modules."""
    agent = new_agent("sam")
    for data in known:
        agent.import_bytes(data)
    return agent


@pytest.fixture(scope="module")
def tiny_student(new_agent: Callable[..., Core], skill_files: dict[str, Path]) -> Core:
    agent = new_agent("tim")
    for path in skill_files.values():
        agent.import_file(path)
    return agent


def images_of(folder: Path, picks: dict[str, list[str]]) -> list[Path]:
    return [
        p for task, labels in picks.items() for c in labels for p in sorted((folder / task / "test" / c).iterdir())
    ]


def shapes(folder: Path) -> list[str]:
    return sorted(p.name for p in (folder / "shapes" / "test").iterdir())


def test_a_task_composed_of_three_received_tasks_answers_without_them(student: Core, demo_tasks: Path) -> None:
    module, lesson = student.compose("mixed", MIXED, tags=["toys"])
    assert module.card.classes == (*shapes(demo_tasks), "one", "last letter")
    assert module.card.teacher_key == student.identity.public_key
    assert module.card.counts == (8,) * 12
    assert lesson.fresh == 0
    for task in ("shapes", "dice", "latin", "greek"):
        student.forget(task)
    again = Core(student.home)  # as read back from disk
    paths = images_of(demo_tasks, {"shapes": shapes(demo_tasks), "dice": ["one"], "greek": ["omega"]})
    answers = again.answer(list(paths))
    expected = ["last letter" if path.parent.name == "omega" else path.parent.name for path in paths]
    assert {a.best.task for a in answers} == {"mixed"}
    right = [a.best.label == label for a, label in zip(answers, expected, strict=True)]
    assert np.mean(right) > 0.9
    assert np.mean([a.label is None for a in answers]) < 0.15


def test_confidence_of_a_composed_task_is_high_for_its_classes(student: Core, demo_tasks: Path) -> None:
    student.compose("mixed", MIXED)
    for task in ("shapes", "dice", "latin", "greek"):
        student.forget(task)
    answers = student.answer(list(images_of(demo_tasks, {"shapes": shapes(demo_tasks)})))
    assert np.mean([a.best.confidence for a in answers]) > 0.7


def test_the_card_lists_the_sources_of_all_classes(student: Core) -> None:
    module, _ = student.compose("mixed", MIXED)
    dice, greek = student.bank.find("dice"), student.bank.find("greek")
    assert module.card.origins[-2:] == ((dice.id, "one"), (greek.id, "omega"))
    assert Card.parse(module.card.canonical().decode()) == module.card


@pytest.mark.parametrize(
    ("composed", "reason"),
    [
        ((ORIGIN,), "composed"),
        ((ORIGIN, "one"), "composed"),
        ((ORIGIN, ORIGIN[:-3]), "composed"),
        ((ORIGIN, ORIGIN, ORIGIN), "composed: found 3, expected 2, one per class"),
    ],
)
def test_a_card_with_invalid_sources_is_refused(student: Core, composed: tuple[str, ...], reason: str) -> None:
    card = student.bank.find("dice").card.model_dump()
    fields = card | {"format": 2, "views": None, "classes": ("a", "b"), "counts": (1, 1)}
    assert Card(**(fields | {"composed": (ORIGIN, ORIGIN)})).origins == (("ab" * 32, "one"),) * 2
    with pytest.raises(CardError, match=reason):
        Card(**(fields | {"composed": composed}))


def test_learned_modules_have_no_sources_in_their_card(student: Core) -> None:
    card = student.bank.find("dice").card
    assert b"composed" not in card.canonical()
    assert card.origins == ()


def test_means_are_unchanged_and_scatter_is_the_average_of_the_sources(student: Core) -> None:
    module, _ = student.compose("mixed", ["shapes:*", "dice:one", "dice:two", "dice:six"])
    composed = SketchAnchor.read(module.tensors)
    parts = {name: SketchAnchor.read(student.bank.find(name).tensors) for name in ("shapes", "dice")}
    np.testing.assert_array_equal(composed.means[:10], parts["shapes"].means)
    images, expected = {"shapes": 70, "dice": 21}, 0.0
    for name, anchor in parts.items():
        expected = expected + images[name] * anchor.scatter.variances
    assert composed.freedom == 91
    assert len(composed.scatter.factor) == len(parts["dice"].scatter.factor)
    np.testing.assert_allclose(composed.scatter.variances.sum(), np.sum(expected) / 91, rtol=0.02)
    assert np.corrcoef(composed.scatter.variances, expected)[0, 1] > 0.99


def test_all_probes_show_chosen_classes(student: Core) -> None:
    module, _ = student.compose("mixed", ["shapes:star", "shapes:heart", "greek:*"])
    probes = read_probes(module.tensors, module.card.dim)
    assert len(probes)
    sources = {name: student.bank.find(name) for name in ("shapes", "greek")}
    theirs = {name: read_probes(m.tensors, m.card.dim) for name, m in sources.items()}
    for probe in probes:
        origins = [n for n, x in theirs.items() if np.abs(x - probe).max(axis=1).min() < 0.05]
        assert origins
        label = Head.read(sources[origins[0]].tensors).logits(probe[None]).argmax()
        assert sources[origins[0]].card.classes[label] in (*sources["greek"].card.classes, "star", "heart")


def test_the_order_of_the_choice_changes_only_the_order_of_the_classes(student: Core) -> None:
    forwards, _ = student.compose("forwards", ["dice:one", "greek:xi", "dice:two"])
    backwards, _ = student.compose("backwards", ["dice:two", "greek:xi", "dice:one"])
    assert forwards.card.classes == backwards.card.classes[::-1]
    for name in ("head.weight", "head.scale", "head.bias", "sketch.mean"):
        np.testing.assert_array_equal(forwards.tensors[name], backwards.tensors[name][::-1])
    np.testing.assert_array_equal(forwards.tensors["sketch.factor"], backwards.tensors["sketch.factor"])


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_choice_of_classes_gives_a_valid_module(tiny_student: Core, data: st.DataObject) -> None:
    known = [(m.card.task, c) for m in tiny_student.bank if m.card.task != "any" for c in m.card.classes]
    chosen = data.draw(st.lists(st.sampled_from(known), min_size=2, max_size=len(known), unique=True))
    renamed = data.draw(st.booleans())
    picks = [Pick(task, label, f"{task} {label}" if renamed else None) for task, label in chosen]
    if len({p.name or p.label for p in picks}) < len(picks):
        with pytest.raises(AgentError, match="would be called"):
            pick(tiny_student.bank, picks)
        return
    module, _ = tiny_student.compose("any", picks, replace=True)
    assert tiny_student.bank.check(tiny_student.bank.file_of(module)) == module
    logits = Head.read(module.tensors).logits(SketchAnchor.read(module.tensors).means)
    assert np.isfinite(logits).all()
    assert (logits.argmax(axis=1) == np.arange(len(picks))).mean() > 0.5

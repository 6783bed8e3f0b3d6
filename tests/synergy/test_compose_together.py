"""Composed tasks beside their sources: answers stay right, other agents accept them, images refine them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from vetted import forged, quarantine_of

from skillmesh.answering.answering import YIELD, YIELD_TO_ALL, Mapper
from skillmesh.core import Core
from skillmesh.errors import DataError, SkillmeshError
from skillmesh.learning.head import read_probes
from skillmesh.module import Module
from skillmesh.store.home import VALIDATION, OwnValidation, load_validation
from skillmesh.vetting.bank_trial import BankTrial
from skillmesh.vetting.quarantine import background_of

pytestmark = pytest.mark.long

RENAMED = ["shapes:star=sun", "shapes:heart=love", "dice:one=ace", "dice:six=best", "greek:omega=end"]
PLAIN = [word.partition("=")[0] for word in RENAMED]


@pytest.fixture
def sam(new_agent: Callable[..., Core], taught: Core) -> Core:
    """An agent with another's modules."""
    agent = new_agent("sam")
    for module in taught.bank:
        agent.import_bytes(taught.bank.file_of(module))
    return agent


@pytest.mark.parametrize("words", [PLAIN, RENAMED])
def test_composing_does_not_change_answers(sam: Core, mixed: list[Path], words: list[str]) -> None:
    before = sam.answer(list(mixed))
    sam.compose("mixed", words)
    after = sam.answer(list(mixed))
    assert [(a.best.task, a.best.label) for a in after] == [(a.best.task, a.best.label) for a in before]
    assert sum(a.unknown for a in after) <= sum(a.unknown for a in before) + 1
    # Given that the task is known: p(known) is steep near the threshold, and the bank's background does change.
    lost = [a.best.confidence / a.known - b.best.confidence / b.known for a, b in zip(before, after, strict=True)]
    assert max(lost) < 0.1, "confidence hardly changes either"
    assert np.mean([a.best.confidence - b.best.confidence for a, b in zip(before, after, strict=True)]) < 0.02


@pytest.mark.parametrize("words", [PLAIN, RENAMED, ["shapes:*", "dice:*"]])
def test_agents_with_the_same_modules_answer_the_same_in_any_order_of_import(
    sam: Core, new_agent: Callable[..., Core], mixed: list[Path], words: list[str]
) -> None:
    sam.compose("mixed", words)
    other = new_agent("olga")
    for module in reversed(list(sam.bank)):
        other.import_bytes(sam.bank.file_of(module))
    ours, theirs = (agent.answer(list(mixed)) for agent in (sam, other))
    assert [a.shared() for a in ours] == [a.shared() for a in theirs]


@pytest.mark.parametrize(
    "words", [PLAIN, RENAMED, ["greek:*"], [f"greek:{c}=my {c}" for c in ("psi", "xi", "omega")]]
)
def test_a_composed_task_is_accepted_before_with_and_after_its_sources(
    sam: Core, taught: Core, words: list[str]
) -> None:
    composed, _ = sam.compose("mixed", words)
    modules = {module.card.task: module for module in taught.bank}
    own = [modules["shapes"], modules["dice"]]
    for order in permutations([composed, modules["greek"], modules["latin"]]):
        live = own
        for newcomer in order:
            verdict = quarantine_of(taught, own).judge(live, [newcomer])
            assert not verdict.held, verdict.held
            live = verdict.modules
    assert not quarantine_of(taught, own).judge(own, [composed, modules["greek"], modules["latin"]]).held


def test_a_newer_version_of_a_source_is_accepted_beside_the_composed_task(sam: Core, taught: Core) -> None:
    """The composed task's probes are images of the source, which gives them other names."""
    composed, _ = sam.compose("mixed", [f"greek:{c}=my {c}" for c in taught.bank.find("greek").card.classes])
    modules = {module.card.task: module for module in taught.bank}
    greek = modules["greek"]
    newer, _ = Module.create(greek.card.model_copy(update={"version": 2}), greek.tensors, taught.identity)
    live = [modules["shapes"], greek, composed]
    verdict = quarantine_of(taught, [modules["shapes"]]).judge(live, [newer])
    assert verdict.accepted == (newer,)


def test_only_its_own_teacher_tests_answers_to_a_composed_task(
    new_agent: Callable[..., Core], tiny_taught: Core
) -> None:
    """Its probes are images of its sources, to which it may give other names."""
    agent = new_agent("sue")
    for module in tiny_taught.bank:
        agent.import_bytes(tiny_taught.bank.file_of(module))
    composed, _ = agent.compose("mixed", ["dice:*", "latin:*"])
    modules, config = list(agent.bank), agent.config
    prior = agent.calibration.prior(config.representation, config.compact)
    background = background_of(agent.calibration, config.representation, config.compact)
    sources = {module.id for module in tiny_taught.bank}
    dice = agent.bank.find("dice")
    images = OwnValidation(composed, read_probes(dice.tensors, dice.card.dim), None)
    for own in ([], [images]):
        results = BankTrial(prior, config.anchor, background, own).run(modules)
        assert results.own.keys() == {kept.module.id for kept in own}
        assert results.others.keys() == sources


def new_images(folder: Path, target: Path, names: dict[str, str], **counts: int) -> Path:
    """Copy images that no task was learned from to folders with the classes' new names."""
    for origin, name in names.items():
        task, _, label = origin.partition(":")
        left = sorted((folder / task / "test" / label).iterdir())
        for split, count in counts.items():
            (target / split / name).mkdir(parents=True)
            for image in left[:count]:
                shutil.copy(image, target / split / name)
            left = left[count:]
    return target


NAMES = {word.partition("=")[0]: word.partition("=")[2] for word in RENAMED}


@pytest.mark.parametrize("form", ["prior", "two", "infinity"])
def test_images_refine_a_composed_task_and_do_not_worsen_it(
    sam: Core, demo_tasks: Path, tmp_path: Path, form: str
) -> None:
    folder = new_images(demo_tasks, tmp_path / "new", NAMES, train=2, val=2)
    module, lesson = sam.compose("mixed", RENAMED, images=folder, form=form, epochs=2)
    assert module.card.counts == (10,) * 5
    assert module.card.validation_images == 10
    assert module.card.validation_accuracy is not None
    assert module.card.validation_accuracy >= 0.9
    assert module.card.trial is not None
    assert module.card.trial.startswith(f"{form} form on 10 images, 2 epochs: ")
    assert len(lesson.validation) == 10
    kept = load_validation(sam.home / VALIDATION, [module])[0]
    assert kept.labels is not None
    assert sorted(kept.labels) == sorted([*range(5)] * 2)


def test_images_correct_wrong_names(sam: Core, demo_tasks: Path, tmp_path: Path) -> None:
    """The images of `ace` show sixes, and the other way round."""
    swapped = NAMES | {"dice:one": "best", "dice:six": "ace"}
    folder = new_images(demo_tasks, tmp_path / "new", swapped, train=2, val=1)
    module, _ = sam.compose("mixed", RENAMED, images=folder)
    for task in ("shapes", "dice", "latin", "greek"):
        sam.forget(task)
    assert module.card.trial is not None
    assert module.card.trial.endswith("kept")
    assert "not kept" not in module.card.trial
    path = sorted((demo_tasks / "dice" / "test" / "six").iterdir())[3]
    assert sam.answer(path).best.label == "ace"


def test_one_image_per_class_does_not_change_the_head(sam: Core, demo_tasks: Path, tmp_path: Path) -> None:
    folder = new_images(demo_tasks, tmp_path / "new", NAMES, train=1)
    plain, _ = sam.compose("plain", RENAMED)
    grown, _ = sam.compose("grown", RENAMED, images=folder)
    np.testing.assert_array_equal(plain.tensors["head.weight"], grown.tensors["head.weight"])
    assert grown.card.counts == (9,) * 5
    assert grown.card.validation_accuracy is None
    assert grown.card.trial == "prior form on 5 images: not tried, since no images are left to validate it"


@pytest.mark.parametrize("form", ["two", "infinity"])
def test_the_papers_forms_are_not_tried_without_validation_images(
    sam: Core, demo_tasks: Path, tmp_path: Path, form: str
) -> None:
    folder = new_images(demo_tasks, tmp_path / "new", NAMES, train=2)
    module, _ = sam.compose("grown", RENAMED, images=folder, form=form)
    expected = f"{form} form on 10 images: not tried, since no images are left to validate it"
    assert module.card.trial == expected


@pytest.mark.parametrize("form", ["two", "infinity"])
def test_the_papers_forms_ignore_the_scale_of_the_rows_and_end_with_all_images(form) -> None:
    from skillmesh.learning.head import Head
    from skillmesh.learning.rows import EpochSettings, train_rows
    from skillmesh.learning.warm_start import level
    from skillmesh.synergy.composed_lesson import Images, refine_with_images
    from skillmesh.synergy.composition import Composed

    rng = np.random.default_rng(0)
    means, labels = rng.normal(size=(4, 30)).astype(np.float32), np.arange(80) % 4
    x = means[labels] + rng.normal(size=(80, 30)).astype(np.float32)
    images = Images(x[:40], labels[:40], x[40:], labels[40:])
    rows, bias = rng.normal(size=(4, 30)).astype(np.float32), np.zeros(4, dtype=np.float32)
    plain, scaled = (
        refine_with_images(Composed(Head(rows * scale, bias)), images, form, 5) for scale in (np.float32(1), 64)
    )
    assert plain.trial.endswith(", kept")
    np.testing.assert_array_equal(plain.composed.head.weight, scaled.composed.head.weight)
    start = np.stack([level({0: row})[0] for row in rows])
    whole = train_rows(x, labels, start, EpochSettings(5, norm=form))
    np.testing.assert_array_equal(plain.composed.head.weight, whole)


def test_an_anchor_extended_with_images_equals_the_anchor_of_all_images(
    new_agent, demo_tasks: Path, tmp_path: Path
) -> None:
    """So a class that looks different in the new images is recognised in both."""
    from skillmesh.anchors import AnchorSettings
    from skillmesh.anchors.sketch import SketchAnchor

    rng = np.random.default_rng(0)
    x, labels = rng.normal(size=(90, 40)).astype(np.float32), np.arange(90) % 3
    x += labels[:, None] * np.float32(0.5)
    exact = AnchorSettings(rank=40)
    first, whole = SketchAnchor.fit(x[:60], labels[:60], 3, exact), SketchAnchor.fit(x, labels, 3, exact)
    widened = first.widened([20] * 3, x[60:], labels[60:], exact)
    assert widened.freedom == whole.freedom
    np.testing.assert_allclose(widened.means, whole.means, atol=0.02)
    np.testing.assert_allclose(widened.scatter.variances, whole.scatter.variances, rtol=0.1)


def test_images_of_other_classes_are_refused(sam: Core, demo_tasks: Path, tmp_path: Path) -> None:
    folder = new_images(demo_tasks, tmp_path / "new", {"dice:one": "ace", "dice:two": "two"}, train=1)
    with pytest.raises(DataError, match="'best', 'end', 'love', 'sun' missing, 'two' unexpected"):
        sam.compose("mixed", RENAMED, images=folder)
    with pytest.raises(SkillmeshError, match="epochs: found 0"):
        sam.compose("mixed", ["dice:one=ace", "dice:two"], images=folder, epochs=0)
    assert "mixed" not in {module.card.task for module in sam.bank}


def test_composed_tasks_are_made_shown_exported_and_withdrawn_by_command(
    sam: Core, command: Callable, new_agent: Callable[..., Core], tmp_path: Path
) -> None:
    ran = command("compose", "mixed", *RENAMED, "--tag", "toys", "--home", sam.home)
    assert ran.code == 0, ran.err
    assert "composed 'mixed': 5 classes of 3 task(s)" in ran.out
    ran = command("compose", "again", "dice:*", "--json", "--home", sam.home)
    assert ran.json["composed"][0] == f"{sam.bank.find('dice').id}:five"
    assert command("show", "mixed", "--json", "--home", sam.home).json["tags"] == ["toys"]
    assert command("export", "mixed", tmp_path / "mixed.skill", "--home", sam.home).code == 0
    other = new_agent("olga")
    assert other.import_file(tmp_path / "mixed.skill").card.classes == ("sun", "love", "ace", "best", "end")
    assert command("withdraw", "mixed", "--home", sam.home).code == 0
    assert "mixed" not in {module.card.task for module in Core(sam.home).bank}
    failed = command("compose", "wrong", "dice:seven", "dice:one", "--home", sam.home)
    assert failed.code == 1
    assert "has no class 'seven'" in failed.err


# Effects on the mapper, and false claims in cards.


@pytest.mark.parametrize("words", [PLAIN, RENAMED])
def test_composing_changes_neither_the_mappers_temperature_nor_its_threshold(sam: Core, words: list[str]) -> None:
    before = sam.mapper()[1]
    sam.compose("mixed", words)
    after = sam.mapper()[1]
    assert len(sam.mapper()[0]) == len(before._modules) + 1
    assert (after.temperature, after.threshold) == (before.temperature, before.threshold)


def test_a_module_falsely_declared_composed_gets_no_penalty_and_is_held(taught: Core) -> None:
    """A penalty would keep it behind a source that is nothing like it, until that source is withdrawn."""
    modules = {module.card.task: module for module in taught.bank}
    shapes, greek = modules["shapes"], modules["greek"]
    names = (*shapes.card.classes[1:], shapes.card.classes[0])
    claim = {"composed": tuple(f"{greek.id}:{greek.card.classes[0]}" for _ in names)}
    claim |= {"format": 2, "trial": None, "views": None}
    # Of two tasks that fit equally, the one whose content has the lower hash answers: only that one does harm.
    copies = (forged(shapes, task=f"n{number}", classes=names) for number in range(1000))
    plain = next(copy for copy in copies if copy.content_id < shapes.content_id)
    liar = forged(shapes, task=plain.card.task, classes=names, **claim)
    for bank in ([greek, liar], [greek, shapes, liar]):
        assert Mapper(bank, "sketch", taught.prior)._yields[-1] == 0
    for newcomer in (plain, liar):
        assert quarantine_of(taught, [shapes]).judge([shapes, greek], [newcomer]).held


def test_vetting_limits_the_penalty_of_a_composed_task(sam: Core) -> None:
    sam.compose("mixed", PLAIN)
    mapper = sam.mapper()[1]
    assert mapper._yields.max() == YIELD_TO_ALL
    assert mapper.on_trial()._yields.max() == pytest.approx(YIELD)
    probed = mapper.probed
    assert mapper.on_trial().probed is not probed
    assert len(mapper.on_trial().probed.task) == len(probed.task)
    assert mapper._yields.max() == YIELD_TO_ALL

"""A received module is tried before it may answer. The hostile modules here are validly signed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vetted import LIAR, forged, quarantine_of

from skillmesh.anchors import KINDS, KnownOdds
from skillmesh.anchors.sketch import SketchAnchor, SketchScorer
from skillmesh.answering.answering import Mapper
from skillmesh.backbone.calibration import Calibration, represent
from skillmesh.core import Core
from skillmesh.data.inputs import as_image
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.head import Head, probe_tensors, read_probes
from skillmesh.module import Identity, Module, in_order
from skillmesh.numerics.arrays import Tensors, quantise_rows
from skillmesh.store.home import MAX_IMAGES, VALIDATION, load_validation, remove_validation, save_validation
from skillmesh.vetting import bank_trial
from skillmesh.vetting.bank_trial import Result, Tried, harm, tolerance
from skillmesh.vetting.quarantine import Quarantine, Verdict, background_of, figures_of

OWN = ("shapes", "dice")
OTHERS = ("latin", "greek")


@pytest.fixture(scope="session")
def modules(taught: Core) -> dict[str, Module]:
    return {module.card.task: module for module in taught.bank}


@pytest.fixture(scope="session")
def quarantine(taught: Core, modules: dict[str, Module]) -> Quarantine:
    """The quarantine of an agent that learned shapes and dice itself."""
    return quarantine_of(taught, [modules[name] for name in OWN])


def with_means(honest: Module, means: np.ndarray, **card: Any) -> Module:
    """Forge a module whose classes have other means and names; it has no probes to check."""
    anchor = replace(SketchAnchor.read(honest.tensors), means=means.astype(np.float32))
    head = Head(anchor.means / 50, np.zeros(len(means), dtype=np.float32))
    classes = tuple(f"class {i}" for i in range(len(means)))
    changes = {"task": "forged", "classes": classes, "counts": (9,) * len(classes), "validation_images": 0} | card
    changes |= {"teacher": LIAR.name, "teacher_key": LIAR.public_key}
    return Module.create(honest.card.model_copy(update=changes), anchor.tensors() | head.tensors(), LIAR)[0]


CHANNELS = 21_008
"""Number of lite0's biases."""


def rival(honest: Module, tensors: Tensors | None = None, **card: Any) -> Module:
    """Forge a copy that wins most images of the copied task: its means are a little nearer to everything."""
    anchor = SketchAnchor.read(honest.tensors)
    moved = replace(anchor, means=anchor.means * np.float32(0.98))
    return forged(honest, moved.tensors() | (tensors or {}), **card)


def names(modules: Any) -> set[str]:
    return {module.card.task for module in modules}


def reason_of(verdict: Verdict) -> str:
    assert not verdict.accepted
    (held,) = verdict.held
    return held.reason


# Honest teachers.


def test_honest_newcomers_need_one_mapper_which_the_bank_then_uses(
    taught: Core, modules: dict[str, Module], quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    built: list[list[Module]] = []

    class Counted(Mapper):
        def __init__(self, bank: list[Module], *rest: Any) -> None:
            built.append(list(bank))
            super().__init__(bank, *rest)

    live = [modules[name] for name in OWN]
    mapper = Mapper(in_order(live), "sketch", quarantine._trial.prior)
    monkeypatch.setattr(bank_trial, "Mapper", Counted)
    verdict = quarantine.judge(live, [modules[name] for name in OTHERS], mapper)
    assert names(verdict.accepted) == set(OTHERS)
    assert not verdict.held
    assert built == [list(taught.bank)]
    assert verdict.modules == list(taught.bank)
    x = quarantine._trial.background
    assert np.array_equal(verdict.mapper.map(x).posterior, taught.mapper()[1].map(x).posterior)


def test_trials_leave_as_many_images_unanswered_as_the_agent(
    taught: Core, modules: dict[str, Module], quarantine: Quarantine
) -> None:
    trial = quarantine._trial
    own = load_validation(taught.home / VALIDATION, [modules[name] for name in OWN])
    stricter = Quarantine(trial.prior, "sketch", trial.background, own, unanswered=0.4)
    live, newcomers = ([modules[name] for name in names] for names in (OWN, OTHERS))
    verdict = stricter.judge(live, newcomers)
    assert verdict.mapper.threshold == Mapper(verdict.modules, "sketch", trial.prior, 0.4).threshold
    assert verdict.mapper.threshold < quarantine.judge(live, newcomers).mapper.threshold


def test_trials_do_not_ask_whether_an_image_that_is_not_answered_is_unknown(
    modules: dict[str, Module], quarantine: Quarantine, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = quarantine._trial

    def measured() -> tuple[Any, ...]:
        tried = trial.run(in_order(list(modules.values())))
        figures = [figures_of(module, "sketch", trial.prior, trial.background) for module in modules.values()]
        return tried.own, tried.others, tried.claims.tolist(), figures

    before = measured()
    assert max(figures.claim for figures in before[-1]) < 1
    monkeypatch.setattr(SketchScorer, "known_odds", KnownOdds(alone=50, per_task=0, slope=1))  # nothing is unknown
    assert measured() == before


def test_the_first_module_of_an_empty_bank_is_accepted(taught: Core, modules: dict[str, Module]) -> None:
    verdict = quarantine_of(taught, []).judge([], [modules["dice"]])
    assert verdict.accepted == (modules["dice"],)
    assert verdict.mapper is not None


def test_an_empty_bank_without_newcomers_gives_an_empty_verdict(taught: Core) -> None:
    assert quarantine_of(taught, []).judge([], []) == Verdict((), (), [], None)


def test_a_second_teacher_of_the_same_classes_passes_whatever_the_case_of_their_names(
    modules: dict[str, Module], quarantine: Quarantine
) -> None:
    second = rival(modules["shapes"], classes=tuple(name.upper() for name in modules["shapes"].card.classes))
    live = list(modules.values())
    answered_by_second = quarantine._trial.run([*live, second]).mapper.map(
        quarantine._trial._own[modules["shapes"].id].x
    ).task == len(live)
    assert answered_by_second.mean() > 0.2
    assert quarantine.judge(live, [second]).accepted == (second,)


# The agent's own images, whose labels are certain.


def test_names_that_one_teacher_distinguishes_stay_distinct(taught: Core, modules: dict[str, Module]) -> None:
    """`A-` and `A` have one plain form; a teacher that swaps them must not count as right."""
    shapes = modules["shapes"]
    names = tuple(f"Rh {i // 2}{'-' if i % 2 else ''}" for i in range(len(shapes.card.classes)))
    exchanged = tuple(f"Rh {i // 2}{'' if i % 2 else '-'}" for i in range(len(names)))
    own = replace(shapes, card=shapes.card.model_copy(update={"classes": names}))
    labels = np.arange(len(names)).repeat(2)
    asked = bank_trial.Case(own, True, SketchAnchor.read(shapes.tensors).means.repeat(2, axis=0), labels)
    assert asked.count_answers(own).right > 0.8 * len(labels)
    assert asked.count_answers(forged(shapes, classes=exchanged)).right < 0.2 * len(labels)
    assert (
        asked.count_answers(forged(shapes, classes=tuple(map(str.upper, names)))).names == 0
    )  # these names must match exactly


def test_a_copy_with_other_names_is_held_for_the_agents_own_images(
    modules: dict[str, Module], quarantine: Quarantine
) -> None:
    thief = rival(modules["shapes"], classes=tuple(f"no {name}" for name in modules["shapes"].card.classes))
    reason = reason_of(quarantine.judge(list(modules.values()), [thief]))
    assert "own validation images are right, expected at most" in reason


def test_a_copy_whose_head_mixes_up_the_same_names_is_held(
    modules: dict[str, Module], quarantine: Quarantine
) -> None:
    head = Head.read(modules["shapes"].tensors)
    mixed_up = Head(np.roll(head.weight, 1, axis=0), np.roll(head.bias, 1))
    thief = rival(modules["shapes"], mixed_up.tensors())
    assert "own validation images" in reason_of(quarantine.judge(list(modules.values()), [thief]))


def test_a_copy_that_is_right_on_plain_descriptors_and_adapts_the_backbone_is_held(
    modules: dict[str, Module], quarantine: Quarantine
) -> None:
    """With its biases it may answer anything, and no agent keeps the images to test that."""
    biases = Biases(np.linspace(-1, 1, CHANNELS).astype(np.float32)).tensors()
    stored = len(biases["bias.value"])
    plain, adapted = rival(modules["shapes"]), rival(modules["shapes"], biases, biases=(CHANNELS, stored))
    assert quarantine.judge(list(modules.values()), [plain]).accepted
    assert "own validation images" in reason_of(quarantine.judge(list(modules.values()), [adapted]))


def test_another_teacher_of_an_adapted_task_is_right_with_any_of_its_names(
    taught: Core, modules: dict[str, Module]
) -> None:
    """The labels of probes that only an adapted head could classify are unknown."""
    biases = Biases(np.linspace(-1, 1, CHANNELS).astype(np.float32)).tensors()
    adapted = forged(modules["shapes"], biases, biases=(CHANNELS, len(biases["bias.value"])))
    first = signed(adapted, Identity.create("ann"))
    trial = quarantine_of(taught, [])._trial
    bob = Identity.create("bob")
    tried = trial.run([first, signed(rival(modules["shapes"]), bob)])
    assert tried.others[first.id].right == tried.others[first.id].images
    wrong_answers = tried.wrong_answers[bob.public_key, False]
    assert wrong_answers.wrong == 0


def test_an_agents_own_adapted_task_is_protected_like_any_other(taught: Core, modules: dict[str, Module]) -> None:
    biases = Biases(np.linspace(-1, 1, CHANNELS).astype(np.float32)).tensors()
    card = modules["shapes"].card.model_copy(update={"biases": (CHANNELS, len(biases["bias.value"]))})
    own = Module.create(card, modules["shapes"].tensors | biases, taught.identity)[0]
    (kept,) = load_validation(taught.home / VALIDATION, [modules["shapes"]])
    trial = quarantine_of(taught, [])._trial
    quarantine = Quarantine(trial.prior, "sketch", trial.background, [replace(kept, module=own)])
    thief = rival(modules["shapes"], classes=tuple(f"no {name}" for name in card.classes))
    assert quarantine.judge([own, modules["dice"]], [modules["greek"]]).accepted
    assert "own validation images" in reason_of(quarantine.judge([own, modules["dice"]], [thief]))


@pytest.mark.parametrize(("accuracy", "passes"), [(0.5, True), (1.0, False)])
def test_a_second_teacher_may_be_wrong_as_often_as_the_first_on_new_images(
    accuracy: float, passes: bool, taught: Core, modules: dict[str, Module]
) -> None:
    """The first teacher's head was trained on its validation images; its card states its real accuracy."""
    shapes = forged(modules["shapes"], validation_accuracy=accuracy)
    (kept,) = load_validation(taught.home / VALIDATION, [modules["shapes"]])
    trial = quarantine_of(taught, [])._trial
    quarantine = Quarantine(trial.prior, "sketch", trial.background, [replace(kept, module=shapes)])
    head, order = Head.read(shapes.tensors), np.arange(len(shapes.card.classes))
    order[:4] = [1, 0, 3, 2]  # four of ten classes mixed up
    second = signed(rival(shapes, Head(head.weight[order], head.bias[order]).tensors()), Identity.create("bob"))
    assert bool(quarantine.judge([shapes, modules["dice"]], [second]).accepted) is passes


def test_the_first_teachers_error_rate_is_excused_per_image_that_a_second_answers(
    taught: Core, modules: dict[str, Module]
) -> None:
    """Nothing more is excused, and the errors of all cases add up."""
    ann, bob = Identity.create("ann"), Identity.create("bob")
    tasks = {name: forged(modules[name], validation_accuracy=0.75) for name in ("shapes", "dice")}
    firsts = [signed(task, ann) for task in tasks.values()]
    seconds = [signed(rival(task), bob) for task in tasks.values()]
    trial = quarantine_of(taught, [])._trial
    tried = trial.run([*firsts, *seconds])
    probes = iter(
        np.split(
            tried.mapper.probed.task,
            np.cumsum([len(read_probes(m.tensors, m.card.dim)) for m in tried.modules]),
        )
    )
    named = wrong = 0
    for first in firsts:
        won = next(probes)
        images = bank_trial.Case(first, False, read_probes(first.tensors, first.card.dim), None)
        for index, second in enumerate(seconds, start=2):
            rows = won == index
            names = images.only(rows).count_answers(second).names
            named += names
            wrong += int(rows.sum()) - names
        excused = 0.25 * sum(images.only(won == i).count_answers(s).names for i, s in enumerate(seconds, start=2))
        assert tried.others[first.id].excused == pytest.approx(excused)
    assert named > 2
    assert tried.wrong_answers[bob.public_key, False].excused == pytest.approx(0.25 * named)
    assert tried.wrong_answers[ann.public_key, False].excused < 0.25 * named


def test_wrong_answers_start_at_zero() -> None:
    assert (bank_trial.WrongAnswers().wrong, bank_trial.WrongAnswers().excused) == (0, 0.0)


def test_many_modules_of_a_teacher_may_not_take_more_than_one_may(
    taught: Core, modules: dict[str, Module]
) -> None:
    """Each module is honest but for one stolen class; the first passes, as it takes few images."""
    quarantine = quarantine_of(taught, [modules["latin"]])
    latin, greek = (SketchAnchor.read(modules[name].tensors) for name in ("latin", "greek"))
    live, reasons = [modules["latin"]], []
    for index, mean in enumerate(latin.means):
        steps = np.random.default_rng(index).standard_normal((8, len(latin.scatter.factor)))
        means = np.concatenate([mean + 0.5 * steps @ latin.scatter.factor, greek.means])
        verdict = quarantine.judge(live, [with_means(modules["greek"], means, task=f"class {index}")])
        live = verdict.modules
        reasons += [held.reason for held in verdict.held]
    assert len(live) > 2
    assert any("modules of its teacher answer" in reason for reason in reasons)


# Probes of other teachers.


def crowd(modules: dict[str, Module]) -> list[Module]:
    """Return greek, and the other tasks by three teachers each: four probes are then a small share of all."""
    teachers = [Identity.create(name) for name in ("ann", "bob", "cyd")]
    copies = [signed(modules[name], who) for name in ("shapes", "dice", "latin") for who in teachers]
    return [modules["greek"], *copies]


def signed(module: Module, teacher: Identity) -> Module:
    card = module.card.model_copy(update={"teacher": teacher.name, "teacher_key": teacher.public_key})
    return Module.create(card, module.tensors, teacher)[0]


def thief_of(module: Module, greed: np.ndarray | None = None, **card: Any) -> Module:
    """Forge a module that takes every probe of another module, under other class names."""
    probes, means = read_probes(module.tensors, module.card.dim), SketchAnchor.read(module.tensors).means
    return with_means(module, np.concatenate([probes, means] + ([] if greed is None else [greed])), **card)


def test_a_module_that_takes_another_teachers_images_is_held(taught: Core, modules: dict[str, Module]) -> None:
    verdict = quarantine_of(taught, []).judge(crowd(modules), [thief_of(modules["greek"])])
    assert "with it 0 instead of 4 of 4 answers to the probes of other modules of 'greek'" in reason_of(verdict)


def test_newcomers_are_tried_on_each_other_with_large_claims_last(
    taught: Core, modules: dict[str, Module]
) -> None:
    """An agent that knows nothing yet receives honest modules and a thief of one of them, all at once.

    In the order of ids the thief would come before its victim, which would then look like the thief.
    """
    quarantine, greek, honest = quarantine_of(taught, []), modules["greek"], crowd(modules)
    claimed = quarantine._trial.background[:8]
    thieves = (thief_of(greek, claimed, temperature=1 + step / 100) for step in range(100))
    thief = next(thief for thief in thieves if thief.content_id < greek.content_id)
    verdict = quarantine.judge([], [thief, *honest])
    assert [held.module for held in verdict.held] == [thief]
    assert set(verdict.accepted) == set(honest)


# Background images, which no task should claim, and numbers that no images have.


def test_a_module_that_claims_the_background_is_held_in_any_bank(
    taught: Core, modules: dict[str, Module], quarantine: Quarantine
) -> None:
    greedy = with_means(modules["greek"], quarantine._trial.background[:32])
    for live in ([], list(modules.values())):
        assert "of the background images" in reason_of(quarantine.judge(live, [greedy]))


@pytest.mark.parametrize(
    ("winner", "complaint"), [(1, "it claims 17 of 64"), (0, "with it other modules claim 17 of 64")]
)
def test_newcomers_may_not_make_background_images_known(
    winner: int, complaint: str, modules: dict[str, Module]
) -> None:
    """Seventeen of 64 images are one more than a quarter."""
    old, new = modules["dice"], modules["greek"]
    before = Tried([old], None, {}, {}, {}, np.full(64, -1))
    after = Tried([old, new], None, {}, {}, {}, np.where(np.arange(64) < 16, winner, -1))
    assert harm(before, after, [new], max_claim=0.25) is None
    after.claims[16] = winner
    assert str(harm(before, after, [new], max_claim=0.25)).startswith(complaint)


def altered(name: str, modules: dict[str, Module]) -> Module:
    """Return the greek module with one quantity out of bounds."""
    greek, tensors = modules["greek"], modules["greek"].tensors
    head = Head.read(tensors)
    changes: dict[str, Tensors] = {
        "means": {"sketch.mean.scale": np.full_like(tensors["sketch.mean.scale"], 10)},
        "probes": {"probe.scale": np.full_like(tensors["probe.scale"], 10)},
        "scatter": {"sketch.diagonal": np.full(greek.card.dim, 255, dtype=np.uint8)},
        "factor": {"sketch.factor.scale": np.full_like(tensors["sketch.factor.scale"], 10)},
        "head": Head(head.weight * 1000, head.bias * 1000).tensors(),
        "mirrored": {"probe": -tensors["probe"]},
        "ideals": probe_tensors(SketchAnchor.read(tensors).means[:4]),
    }
    return forged(greek, changes[name], task="forged")


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("means", "a mean or probe lies"),
        ("probes", "a mean or probe lies"),
        ("scatter", "its classes scatter"),
        ("factor", "its classes scatter"),
        ("head", "its head prefers"),
        ("mirrored", "its probes are not of its classes"),
        ("ideals", "its probes are not of its classes"),
    ],
)
def test_a_module_with_an_absurd_number_is_held(
    name: str, complaint: str, modules: dict[str, Module], quarantine: Quarantine
) -> None:
    live = [modules[task] for task in OWN]
    assert reason_of(quarantine.judge(live, [altered(name, modules)])).startswith(complaint)


def test_a_newcomer_that_makes_own_images_unknown_is_held(modules: dict[str, Module]) -> None:
    """With a true share of five points, more than seven of thirty images are lost only by very bad luck."""
    old, new = modules["dice"], modules["greek"]
    before = Tried([old], None, {old.id: Result(30, 30, 30, 0.0)}, {}, {}, np.full(64, -1))
    for known, complaint in ((23, None), (22, "with it 22 instead of 30 of 30 of the agent's own")):
        results = {old.id: Result(30, 30, known, 0.0)}
        complaint_found = harm(
            before, Tried([old, new], None, results, {}, {}, before.claims), [new], max_claim=0.25
        )
        assert complaint_found is None if complaint is None else str(complaint_found).startswith(complaint)


# Many at once, and new versions.


def test_only_the_bad_modules_of_a_batch_are_held_in_any_order(
    modules: dict[str, Module], quarantine: Quarantine
) -> None:
    live, honest = [modules[name] for name in OWN], [modules[name] for name in OTHERS]
    thief = rival(modules["shapes"], classes=tuple(f"no {name}" for name in modules["shapes"].card.classes))
    bad = [thief, altered("scatter", modules)]
    verdict = quarantine.judge(live, [*bad, *honest])
    assert names(verdict.accepted) == set(OTHERS)
    assert {held.module for held in verdict.held} == set(bad)
    without = quarantine.judge(live, honest)
    assert verdict.modules == without.modules
    x = quarantine._trial.background
    assert np.array_equal(verdict.mapper.map(x).posterior, without.mapper.map(x).posterior)
    again = quarantine.judge(live[::-1], [*honest[::-1], *bad[::-1]])
    assert (again.accepted, again.held, again.modules) == (verdict.accepted, verdict.held, verdict.modules)


def test_a_new_version_is_compared_with_the_bank_without_the_old_one(
    taught: Core, modules: dict[str, Module]
) -> None:
    """Its classes have new names: beside the old version it would be a thief."""
    quarantine, others = quarantine_of(taught, []), crowd(modules)[1:]
    old = forged(modules["greek"])
    new = thief_of(old, task="greek", version=2)
    assert quarantine.judge([*others, old], [thief_of(old)]).held
    verdict = quarantine.judge([*others, old], [new])
    assert verdict.accepted == (new,)
    assert set(verdict.modules) == {*others, new}
    assert quarantine.judge(verdict.modules, [old]).modules == verdict.modules


def test_the_old_version_stays_if_the_new_one_is_held(modules: dict[str, Module], quarantine: Quarantine) -> None:
    old = rival(modules["greek"])
    live = [modules["shapes"], modules["dice"], old]
    thief = rival(
        modules["shapes"], task="greek", version=2, classes=tuple("abcdefghijklmnop")[: _classes(modules)]
    )
    verdict = quarantine.judge(live, [thief])
    assert [held.module for held in verdict.held] == [thief]
    assert set(verdict.modules) == set(live)
    alone = Mapper(verdict.modules, "sketch", quarantine._trial.prior)
    assert verdict.mapper.threshold == alone.threshold


def _classes(modules: dict[str, Module]) -> int:
    return len(modules["shapes"].card.classes)


# The paper's anchors.


@pytest.mark.parametrize("kind", ["maha", pytest.param("gmmc", marks=pytest.mark.sklearn)])
def test_the_papers_anchors_are_vetted_too(kind: str, new_agent: Callable[..., Core], tiny_tasks: Path) -> None:
    agent = new_agent(kind, anchor=kind, representation="sqrt-features", variance_floor=0.01, clusters=4)
    shapes, dice = (agent.learn(tiny_tasks / name)[0] for name in ("shapes", "dice"))
    quarantine = quarantine_of(agent, [shapes])
    assert quarantine.judge([shapes], [dice]).accepted == (dice,)
    anchor = KINDS[kind].read(dice.tensors)
    wide = 12 * quarantine._trial.prior.within.variances.astype(np.float32)
    wider = {
        "maha": lambda: {"samples": np.repeat(anchor.means, anchor.counts, axis=0) + np.sqrt(wide)},
        "gmmc": lambda: {"variances": np.tile(wide, (len(anchor.means), 1))},
    }
    bad = [
        forged(dice, replace(anchor, means=anchor.means + 1000).tensors(), task="far"),
        forged(dice, replace(anchor, **wider[kind]()).tensors(), task="wide"),
    ]
    reasons = {held.module.card.task: held.reason for held in quarantine.judge([shapes], bad).held}
    assert reasons["far"].startswith("a mean or probe lies")
    assert reasons["wide"].startswith("its classes scatter")


# The tolerance and the background sample.


def test_the_tolerance_is_a_binomial_bound() -> None:
    rng = np.random.default_rng(0)
    for images, rate in ((30, 0.01), (200, 0.01), (120, 0.05)):
        exceeded = np.mean(rng.binomial(images, rate, 1_000_000) > tolerance(images, rate))
        assert exceeded < 2e-4
        assert np.mean(rng.binomial(images, rate, 1_000_000) > tolerance(images, rate) - 1) > 1e-4
    assert tolerance(0, 0.01) == 0
    assert tolerance(10, 0.5, excused=100) == 10


@pytest.mark.parametrize(
    ("representation", "compact"), [("features", False), ("sqrt-features", False), ("descriptor", True)]
)
def test_the_background_is_converted_to_every_representation(
    representation: Any, compact: bool, taught: Core, demo_tasks: Path
) -> None:
    calibration, features = taught.calibration, taught.calibration.features
    images = [as_image(path, 0) for path in sorted((demo_tasks / "dice" / "test").glob("*/*"))[:3]]
    raw = taught.backbone.describe(images).raw
    standard = represent(raw, features, "descriptor", calibration)
    rows, scale = quantise_rows(standard)
    tensors = calibration.tensors | {"background": rows, "background.scale": scale}
    stored = Calibration._of(tensors, calibration.network, calibration.source)
    expected = represent(raw, features, representation, calibration, compact)
    clipped = (np.abs(standard[:, :features]) >= 6) if not compact else np.zeros_like(expected, dtype=bool)
    converted = background_of(stored, representation, compact)
    assert converted.shape == expected.shape
    assert np.allclose(converted[~clipped], expected[~clipped], atol=0.1)


# An agent's own validation images.


def test_learning_keeps_validation_descriptors_that_the_module_does_not_carry(taught: Core) -> None:
    folder = taught.home / VALIDATION
    module = taught.bank.find("shapes")
    (kept,) = load_validation(folder, [module])
    assert len(kept.x) == module.card.validation_images > 4
    assert set(kept.labels) == set(range(len(module.card.classes)))
    probes = read_probes(module.tensors, module.card.dim)
    nearest = np.abs(kept.x[:, None] - probes[None]).max(axis=2).min(axis=0)
    assert nearest.max() < 0.1


def test_many_validation_images_are_thinned_evenly(tmp_path: Path, taught: Core) -> None:
    module = taught.bank.find("shapes")
    classes = len(module.card.classes)
    labels = np.repeat(np.arange(classes), 500 // classes)
    x = np.ones((len(labels), module.card.dim), dtype=np.float32) * (labels[:, None] + 1)
    save_validation(tmp_path, module.id, x, labels)
    (kept,) = load_validation(tmp_path, [module])
    assert len(kept.x) == MAX_IMAGES
    assert np.ptp(np.bincount(kept.labels, minlength=classes)) <= 1
    assert np.allclose(kept.x[:, 0], kept.labels + 1)


@pytest.mark.parametrize("damage", ["missing", "cut", "pickle", "wrong label", "wrong width"])
def test_probes_replace_a_missing_or_damaged_validation_file(damage: str, tmp_path: Path, taught: Core) -> None:
    module = taught.bank.find("shapes")
    rows, width = 6, module.card.dim - (damage == "wrong width")
    label = 999 if damage == "wrong label" else 0
    save_validation(tmp_path, module.id, np.ones((rows, width), dtype=np.float32), np.full(rows, label))
    (file,) = tmp_path.iterdir()
    if damage == "missing":
        remove_validation(tmp_path, module.id)
        assert not file.exists()
    elif damage == "cut":
        file.write_bytes(file.read_bytes()[:100])
    elif damage == "pickle":
        file.write_bytes(b"\x80\x04K\x01.")
    (kept,) = load_validation(tmp_path, [module])
    assert kept.labels is None
    assert np.array_equal(kept.x, read_probes(module.tensors, module.card.dim))


def test_a_folder_without_write_permission_does_not_stop_learning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "validation").write_text("a file, where a folder should be")
    save_validation(
        tmp_path / "validation", "0" * 64, np.ones((2, 3), dtype=np.float32), np.zeros(2, dtype=np.int64)
    )
    assert "not kept" in caplog.text


def test_own_probes_alone_still_protect_the_agent(
    taught: Core, modules: dict[str, Module], tmp_path: Path
) -> None:
    shapes = modules["shapes"]
    own = load_validation(tmp_path, [shapes])
    full = quarantine_of(taught, [])
    quarantine = Quarantine(full._trial.prior, "sketch", full._trial.background, own)
    reason = reason_of(quarantine.judge([shapes, modules["dice"]], [thief_of(shapes)]))
    assert "own validation images" in reason

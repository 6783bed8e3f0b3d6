"""Modules with biases: small, signed like any other, and with the same answers on every agent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from meshes import Mesh, answers, eventually
from PIL import Image

from skillmesh.answering.answering import Mapper
from skillmesh.common.choices import Adaptation
from skillmesh.core import Core
from skillmesh.data.inputs import as_image
from skillmesh.errors import BackboneError, DataError, SkillmeshError, TensorError
from skillmesh.learning import trial
from skillmesh.learning.adaptation import BLOCK, MAX_BYTES, Biases
from skillmesh.learning.head import Fit, Head, fit_head
from skillmesh.learning.trial import _better, _largest

pytestmark = [pytest.mark.long, pytest.mark.torch]

LITE0, XCEPTION = 21_008, 50_312


@given(channels=st.integers(1, 1000), seed=st.integers(0, 10**6), size=st.floats(1e-3, 100))
def test_stored_biases_are_off_by_at_most_half_a_step(channels: int, seed: int, size: float):
    added = (size * np.random.default_rng(seed).standard_normal(channels)).astype(np.float32)
    stored = Biases.read(Biases(added).tensors(), channels).added
    largest = [np.abs(added[start : start + BLOCK]).max() for start in range(0, channels, BLOCK)]
    assert np.all(np.abs(stored - added) <= np.repeat(largest, BLOCK)[:channels] / 127 * 0.51)


def test_storing_biases_again_changes_nothing():
    added = np.random.default_rng(0).standard_normal(300).astype(np.float32)
    once = Biases.read(Biases(added).tensors(), 300)
    assert np.array_equal(Biases.read(once.tensors(), 300).added, once.added)


@pytest.mark.parametrize("channels", [LITE0, XCEPTION])
def test_biases_take_less_than_45_kilobytes_and_the_largest_are_kept(channels: int):
    added = np.random.default_rng(0).standard_normal(channels).astype(np.float32)
    tensors = Biases(added).tensors()
    assert sum(tensor.nbytes for tensor in tensors.values()) <= MAX_BYTES
    kept = Biases.read(tensors, channels).added != 0
    assert kept[np.argsort(-np.abs(added))[: channels // 2]].all()


def test_channels_without_biases_take_about_one_bit_each():
    assert sum(tensor.nbytes for tensor in Biases(np.zeros(LITE0, dtype=np.float32)).tensors().values()) < 3_400


def test_a_mask_that_does_not_match_the_values_is_refused():
    tensors = Biases(np.ones(20, dtype=np.float32)).tensors()
    with pytest.raises(TensorError, match=r"'bias.value' has 19 numbers, expected 20"):
        Biases.read(tensors | {"bias.value": tensors["bias.value"][1:]}, 20)
    with pytest.raises(TensorError, match=r"'bias.value'"):
        Biases.read(tensors | {"bias.mask": np.full(3, 255, dtype=np.uint8)}, 20)  # a bit beyond the last channel


@pytest.fixture(scope="module")
def biased(new_agent: Callable[..., Core], demo_tasks: Path) -> Core:
    """An agent that learned dice with biases, and shapes without."""
    agent = new_agent("alice")
    agent.learn(demo_tasks / "dice", adaptation=Adaptation(mode="always"))
    agent.learn(demo_tasks / "shapes")
    return agent


def test_a_module_with_biases_records_the_trial_and_is_little_larger(biased: Core, taught: Core):
    module, plain = biased.bank.find("dice"), taught.bank.find("dice")
    assert module.card.biases is not None
    assert module.card.biases[0] == LITE0 >= module.card.biases[1] == len(module.tensors["bias.value"])
    assert module.card.trial.startswith("biases: ")
    assert module.card.trial.endswith("kept")
    assert plain.size < module.size <= plain.size + 45_000
    assert biased.bank.find("shapes").card.trial is None


def test_biases_lie_in_the_chosen_layers_and_the_smallest_are_left_out(
    new_agent: Callable[..., Core], demo_tasks: Path
):
    agent = new_agent()
    module, lesson = agent.learn(
        demo_tasks / "dice", adaptation=Adaptation(mode="always", layers="blocks.6,conv_head")
    )
    biases = Biases.read(module.tensors, LITE0)
    start = next(place.start for place in agent.backbone.network.places if place.path.startswith("blocks.6"))
    assert biases.added.any()
    assert not biases.added[:start].any()
    assert lesson.costs.spent["backward"] < 0.2 * lesson.costs.spent["forward"]
    values = np.zeros(LITE0, dtype=np.float32)
    values[:80] = np.arange(80)
    assert np.flatnonzero(_largest(values, 0.125)).tolist() == list(range(70, 80))


def test_biases_are_left_out_as_far_as_the_validation_loss_allows(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    kept = []
    for missed in (-1.0, 1e9):  # no increase of the loss is allowed; any increase is allowed
        monkeypatch.setattr(trial, "MISSED", missed)
        module, _ = new_agent().learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="always", layers="last-2"))
        kept.append(module.card.biases[1])
    assert kept[0] > 800
    assert kept[1] == pytest.approx(kept[0] / 8, rel=0.1)


@pytest.mark.parametrize("better", [True, False])
def test_auto_keeps_an_adaptation_only_if_it_is_better_on_validation_images(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch, better: bool
):
    monkeypatch.setattr(trial, "_better", lambda *_: better)
    fit = lambda *args, **more: replace(fit_head(*args, **more), accuracy=0.5)  # noqa: E731
    monkeypatch.setattr("skillmesh.learning.lesson.fit_head", fit)
    agent = new_agent()
    plain, _ = agent.learn(tiny_tasks / "shapes", views=0)  # an adaptation allows no views
    tried, _ = agent.learn(
        tiny_tasks / "shapes", adaptation=Adaptation(mode="auto", layers="last-2"), replace=True
    )
    assert (tried.card.biases is not None) is better
    assert tried.card.views is None
    assert tried.card.trial.endswith("; kept" if better else "; not kept")
    same = all(np.array_equal(tried.tensors[name], tensor) for name, tensor in plain.tensors.items())
    assert same is not better


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"layers": "nonsense"}, "there are no layers"),
        ({"kind": "reprogramming", "layers": "last-2"}, "reprogramming trains none"),
    ],
)
def test_impossible_adaptations_are_refused_before_any_image_is_opened(
    new_agent: Callable[..., Core],
    tiny_tasks: Path,
    monkeypatch: pytest.MonkeyPatch,
    asked: dict[str, str],
    words: str,
):
    agent = new_agent()
    monkeypatch.setattr(agent.backbone, "describe", lambda *_: pytest.fail("images were opened"))
    with pytest.raises(SkillmeshError, match=words):
        agent.learn(tiny_tasks / "shapes", adaptation=Adaptation(**asked))


def test_without_validation_images_always_is_refused_and_auto_tries_nothing(
    new_agent: Callable[..., Core], tmp_path: Path
):
    for name, shade in (("dark", 20), ("light", 220)):
        (tmp_path / "shades" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32), (shade,) * 3).save(tmp_path / "shades" / name / "only.png")
    agent = new_agent()
    with pytest.raises(DataError, match="no validation images"):
        agent.learn(tmp_path / "shades", adaptation=Adaptation(mode="always"))
    module, _ = agent.learn(tmp_path / "shades", adaptation=Adaptation(mode="auto"))
    assert module.card.trial.startswith("biases: not tried, since all 0 validation images")


def test_epochs_mirroring_and_the_plain_head_are_passed_to_the_training(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    from skillmesh.learning import biases

    asked, train = [], biases.train_biases
    monkeypatch.setattr(biases, "train_biases", lambda *args: asked.append(args[5]) or train(*args))
    new_agent().learn(
        tiny_tasks / "shapes",
        adaptation=Adaptation(mode="always", layers="last-2", epochs=2, mirrored=True, from_plain_head=True),
    )
    assert [(s.epochs, s.flips, s.warm) for s in asked] == [(2, True, True)]


@pytest.mark.parametrize("channels", [368_640, 2_000_000])
def test_huge_networks_have_no_room_for_biases(channels: int):
    tensors = Biases(np.ones(channels, dtype=np.float32)).tensors()
    assert len(tensors["bias.value"]) == 0


def test_unknown_layers_are_refused_and_nothing_is_learned(new_agent: Callable[..., Core], demo_tasks: Path):
    agent = new_agent()
    with pytest.raises(BackboneError, match="there are no layers 'first'"):
        agent.learn(demo_tasks / "dice", adaptation=Adaptation(mode="always", layers="first"))
    assert len(agent.bank) == 0


def test_images_of_a_task_with_biases_are_answered_from_the_biased_network(biased: Core, mixed: list[Path]):
    images = [as_image(path) for path in mixed if path.parts[-4] in ("dice", "shapes")]
    x = biased.backbone.represent(biased.backbone.describe(images).raw, "descriptor")
    module = biased.bank.find("dice")
    answered = biased.answer_described(x, images)
    mine = [index for index, answer in enumerate(answered) if answer.best.task == "dice"]
    seen = biased.seen_by(module, x[mine], [images[index] for index in mine])
    assert not np.allclose(seen, x[mine])
    labels = biased.head(module).logits(seen).argmax(axis=1)
    assert [answered[index].best.label for index in mine] == [module.card.classes[label] for label in labels]
    assert len(mine) >= 20
    assert np.mean([answered[index].best.label == Path(answered[index].image).parent.name for index in mine]) > 0.5


def test_auto_trains_nothing_if_all_validation_images_are_right(new_agent: Callable[..., Core], tiny_tasks: Path):
    module, _ = new_agent().learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="auto"))
    assert module.card.biases is None
    assert module.card.trial == "biases: not tried, since all 2 validation images are right without"


def fit(wrong: int, sureness: float) -> tuple[Fit, np.ndarray, np.ndarray]:
    """Return a head with `wrong` errors on a hundred images of two classes and logits of `sureness` / 2."""
    labels = np.arange(100) % 2
    x = np.where(np.arange(100) < wrong, 1 - labels, labels)[:, None].astype(np.float32)
    head = Head(np.array([[-sureness], [sureness]], np.float32), np.array([sureness, -sureness], np.float32) / 2)
    return Fit(head, 0.0, 1.0, 1 - wrong / 100, head), x, labels


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ((20, 2.0), (5, 2.0), True),
        ((20, 2.0), (19, 2.0), False),  # one more right answer is noise
        ((5, 2.0), (20, 2.0), False),
        ((0, 2.0), (0, 9.0), False),  # more confident, not better
    ],
)
def test_auto_keeps_an_adaptation_with_fewer_errors_beyond_noise(before, after, kept: bool):
    (plain, x, labels), (adapted, seen, _) = fit(*before), fit(*after)
    assert _better(plain, x, adapted, seen, labels) == kept


def test_a_student_answers_as_the_teacher_does(
    biased: Core, new_agent: Callable[..., Core], mixed: list[Path], tmp_path: Path
):
    student = new_agent("bob")
    for task in ("dice", "shapes"):
        biased.export(task, tmp_path / f"{task}.skill")
        student.import_file(tmp_path / f"{task}.skill")
    assert [a.shared() for a in student.answer(mixed)] == [a.shared() for a in biased.answer(mixed)]


@pytest.mark.parametrize("order", [("dice", "shapes"), ("shapes", "dice")], ids="-".join)
def test_an_adapted_module_gives_no_guesses_for_images_of_other_tasks(
    biased: Core, demo_tasks: Path, order: tuple[str, str]
):
    modules = [biased.bank.find(task) for task in order]
    biased.rebuilds_itself = False
    try:
        biased.use(modules, Mapper(modules, "sketch", biased.prior))
        answers = biased.answer(sorted(demo_tasks.glob("shapes/test/*/*"))[:8])
    finally:
        biased.rebuilds_itself = True
    theirs = [answer for answer in answers if answer.best.task == "shapes"]
    assert len(theirs) >= 6
    for answer in theirs:
        assert {guess.task for guess in answer.guesses} == {"shapes"}, "dice would need a pass of its own"


@pytest.mark.parametrize(
    ("adaptation", "parts", "largest"),
    [
        ("head2toe", {"bias.mask", "bias.value", "bias.scale", "head.exponent"}, 3 * 8840),
        ("reprogramming", {"pattern"}, 224 * 224 * 3),
    ],
)
def test_modules_with_other_adaptations_work_on_a_student_too(
    new_agent: Callable[..., Core],
    tiny_tasks: Path,
    tiny_taught: Core,
    tmp_path: Path,
    adaptation: str,
    parts: set[str],
    largest: int,
):
    teacher, student = new_agent("alice"), new_agent("bob")
    module, _ = teacher.learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="always", kind=adaptation))
    teacher.learn(tiny_tasks / "greek")
    assert module.tensors.keys() - tiny_taught.bank.find("shapes").tensors.keys() == parts
    assert module.size < tiny_taught.bank.find("shapes").size + largest + 45_000
    assert module.card.trial.startswith(f"{adaptation}: ")
    for task in ("shapes", "greek"):
        teacher.export(task, tmp_path / f"{task}.skill")
        student.import_file(tmp_path / f"{task}.skill")
    images = sorted(tiny_tasks.glob("shapes/test/*/*")) + sorted(tiny_tasks.glob("greek/test/*/*"))
    taught_answers = teacher.answer(images)
    assert [a.shared() for a in student.answer(images)] == [a.shared() for a in taught_answers]
    mine = [a for a in taught_answers if a.best.task == "shapes"]
    right = [a.best.label == Path(a.image).parent.name for a in mine]
    assert np.mean(right) > 0.6, "the stored head must answer like the trained one"
    for answer in mine:  # the answer comes from the head on the adapted network
        seen = teacher.seen_by(module, np.zeros((1, module.card.dim), np.float32), [as_image(answer.image)])
        assert seen.shape == (1, module.card.head_dim)
        assert answer.best.label == module.card.classes[teacher.head(module).logits(seen)[0].argmax()]


@pytest.mark.parametrize("changes", [{"biases": (40, 12)}, {"biases": (LITE0, 12), "toes": (3, 2, 5)}])
def test_a_module_for_an_unknown_network_affects_only_its_own_answers(
    biased: Core, new_agent: Callable[..., Core], mixed: list[Path], changes: dict[str, tuple[int, ...]]
):
    from skillmesh.module import Module

    honest, added = biased.bank.find("dice"), np.zeros(changes["biases"][0], dtype=np.float32)
    added[:12] = 1
    card = honest.card.model_copy(update=changes)
    head = {"head.weight": np.ones((len(card.classes), card.head_dim), dtype=np.int8)}
    if card.toes is not None:
        head["head.exponent"] = np.zeros(card.head_dim, dtype=np.int8)
    _, data = Module.create(card, honest.tensors | Biases(added).tensors() | head, biased.identity)
    student = new_agent("bob")
    student.import_bytes(biased.bank.file_of(biased.bank.find("shapes")))
    student.import_bytes(data)
    images = [path for path in mixed if path.parts[-4] in ("dice", "shapes")]
    theirs = [a for a in student.answer(images) if a.best.task == "shapes"]
    assert theirs
    expected = {a.image: a.best.label for a in biased.answer(images)}
    assert [a.best.label for a in theirs] == [expected[a.image] for a in theirs]


def test_a_module_with_inconsistent_biases_is_refused_on_import(
    biased: Core, new_agent: Callable[..., Core], tmp_path: Path
):
    from skillmesh.module import Module

    module = biased.bank.find("dice")
    short = module.tensors | {"bias.value": module.tensors["bias.value"][1:]}
    card = module.card.model_copy(update={"biases": (LITE0, len(short["bias.value"]))})
    _, data = Module.create(card, short, biased.identity)
    (tmp_path / "bad.skill").write_bytes(data)
    with pytest.raises(TensorError, match=r"as many as 'bias.mask' marks"):
        new_agent().import_file(tmp_path / "bad.skill")


def test_adapted_modules_are_shared_on_the_mesh(new_agent: Callable[..., Core], tiny_tasks: Path, tmp_path: Path):
    teacher = new_agent("alice")
    for task, adaptation in (("shapes", "biases"), ("latin", "head2toe"), ("greek", "reprogramming")):
        teacher.learn(tiny_tasks / task, adaptation=Adaptation(mode="always", kind=adaptation))
    images = [
        path for task in ("shapes", "latin", "greek") for path in sorted((tiny_tasks / task).glob("test/*/*"))
    ]
    mesh = Mesh(tmp_path, [teacher.home])
    try:
        nodes = mesh.node(0), mesh.node(None)
        for node in nodes:
            node.start(wait=False)
        eventually(lambda: all(node.runs() for node in nodes) and mesh.converged(tasks=3))
        answered = [answers(node, images) for node in nodes]
        assert answered[0] == answered[1]
        assert {answer["task"] for answer in answered[0]} >= {"shapes", "latin", "greek"}
    finally:
        mesh.stop()


def test_zero_or_invalid_biases_are_not_kept(
    new_agent: Callable[..., Core], tiny_tasks: Path, monkeypatch: pytest.MonkeyPatch
):
    from skillmesh.learning import biases

    train = biases.train_biases
    for value in (0.0, np.nan):
        monkeypatch.setattr(
            biases,
            "train_biases",
            lambda *args, value=value: replace(trained := train(*args), values=trained.values * 0 + value),
        )
        module, _ = new_agent().learn(tiny_tasks / "shapes", adaptation=Adaptation(mode="always"))
        assert module.card.biases is None
        assert module.card.trial.endswith("; not kept")

"""A new kind of anchor needs only one file and a name among the choices: no other code lists the kinds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import numpy as np
import pytest
from halves import dealt
from pydantic import BaseModel
from vetted import forged, quarantine_of

from skillmesh.anchors import KINDS, Anchor, AnchorSettings, Scorer, TakenClasses
from skillmesh.anchors.sketch import SketchAnchor
from skillmesh.common.config import AgentConfig
from skillmesh.core import Core
from skillmesh.data.folder import TaskImages, open_task
from skillmesh.errors import SettingsMismatchError
from skillmesh.module.card import Card
from skillmesh.module.notice import Announcement
from skillmesh.numerics.arrays import Floats, Spec, Tensors

NewAgent = Callable[..., Core]


def named(kind: str, those: dict[str, Any]) -> dict[str, Any]:
    """Return the tensors or specs of a sketch under another kind's name."""
    return {f"{kind}.{name.removeprefix('sketch.')}": value for name, value in those.items()}


@dataclass(frozen=True)
class Plain(Anchor):
    """A kind that implements only what the protocol requires; it wraps a sketch that no other code can see."""

    kind: ClassVar[str] = "plain"
    most_claimed: ClassVar[float] = SketchAnchor.most_claimed

    inner: SketchAnchor

    @classmethod
    def fit(
        cls, x: Floats, labels: Any, classes: int, settings: AnchorSettings, images: int | None = None
    ) -> Self:
        return cls(SketchAnchor.fit(x, labels, classes, settings))

    @classmethod
    def specs(cls, classes: int, dim: int) -> dict[str, Spec]:
        return named(cls.kind, SketchAnchor.specs(classes, dim))

    @classmethod
    def read(cls, tensors: Tensors) -> Self:
        own = f"{cls.kind}."
        stored = {"sketch." + name.removeprefix(own): t for name, t in tensors.items() if name.startswith(own)}
        return cls(SketchAnchor.read(stored))

    def tensors(self) -> Tensors:
        return named(self.kind, self.inner.tensors())

    @classmethod
    def pool(cls, anchors: Iterable[Self], prior: Any) -> Scorer:
        return SketchAnchor.pool((anchor.inner for anchor in anchors), prior)

    def rows(self) -> Floats:
        return self.inner.rows()

    def spread(self) -> float:
        return self.inner.spread()


class Adding(Plain):
    """A kind that adds up and is divisible."""

    kind: ClassVar[str] = "adding"
    adds_up: ClassVar[bool] = True
    divisible: ClassVar[bool] = True

    def exact_tensors(self) -> Tensors:
        return named(self.kind, self.inner.exact_tensors())

    def class_means(self) -> Floats:
        return self.inner.class_means()

    def gaussians(self, settings: AnchorSettings) -> Any:
        return self.inner.gaussians(settings)

    @classmethod
    def of_gaussians(cls, known: Any) -> Self:
        return cls(SketchAnchor.of_gaussians(known))

    @classmethod
    def composed(cls, parts: Sequence[TakenClasses[Self]], order: Any, settings: AnchorSettings) -> Self:
        inner = [TakenClasses(part.anchor.inner, part.classes, part.share) for part in parts]
        return cls(SketchAnchor.composed(inner, order, settings))


class Divisible(Adding):
    """A kind whose classes can be taken out, but that cannot add further images."""

    kind: ClassVar[str] = "divisible"
    adds_up: ClassVar[bool] = False


NEW: dict[str, type[Plain]] = {kind.kind: kind for kind in (Plain, Adding, Divisible)}
MODELS: dict[type[BaseModel], str] = {AgentConfig: "anchor", Card: "anchors", Announcement: "anchors"}
"""Fields that hold an `AnchorKind`, by model."""


@pytest.fixture(scope="module", autouse=True)
def _registered() -> Iterator[None]:
    """Register the kinds as a file for each, and its name in `AnchorKind`, would on import."""
    choice = Literal["sketch", "gmmc", "maha", "plain", "adding", "divisible"]
    with pytest.MonkeyPatch.context() as patch:
        for kind, anchor in NEW.items():
            patch.setitem(KINDS, kind, anchor)
        for model, name in MODELS.items():
            annotation = tuple[choice, ...] if name == "anchors" else choice
            patch.setattr(model.model_fields[name], "annotation", annotation)
            model.model_rebuild(force=True)
        yield
    for model in MODELS:
        model.model_rebuild(force=True)


@pytest.fixture(scope="module")
def shapes(demo_tasks: Path) -> TaskImages:
    return open_task(demo_tasks / "shapes")


def taught(new_agent: NewAgent, name: str, kind: str, *tasks: TaskImages | Path) -> Core:
    agent = new_agent(name, anchor=kind)
    for task in tasks:
        agent.learn(task)
    return agent


def share(teacher: Core, task: str, student: Core, folder: Path) -> None:
    teacher.export(task, folder / f"{task}.skill")
    student.import_file(folder / f"{task}.skill")


def right(agent: Core, demo_tasks: Path, task: str) -> float:
    images = sorted((demo_tasks / task / "test").glob("*/*"))
    answers = agent.answer(images)
    return float(np.mean([a.best.label == path.parent.name for a, path in zip(answers, images, strict=True)]))


def test_an_additive_kind_can_add_images_without_code_of_its_own() -> None:
    rng, labels, settings = np.random.default_rng(0), np.repeat([0, 1], 10), AnchorSettings(rank=3)
    x, more = (rng.standard_normal((20, 8)).astype(np.float32) for _ in range(2))
    grown = [
        kind.fit(x, labels, 2, settings).widened([10, 10], more, labels, settings)
        for kind in (SketchAnchor, Adding)
    ]
    expected = named("adding", grown[0].tensors())
    assert grown[1].tensors().keys() == expected.keys() == Adding.specs(2, 8).keys()
    assert all(np.array_equal(value, expected[name]) for name, value in grown[1].tensors().items())
    with pytest.raises(SettingsMismatchError, match="divisible anchors cannot add further images"):
        Divisible.fit(x, labels, 2, settings).widened([10, 10], more, labels, settings)


@pytest.mark.long
def test_an_additive_kind_can_learn_extend_compose_and_merge(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path, tmp_path: Path
) -> None:
    """The wrapped sketch learns and extends to the same numbers as a plain one, under the new kind's names."""
    parts, picks = dealt(shapes, 3), [f"shapes:{shapes.classes[0]}", f"shapes:{shapes.classes[3]}", "dice:one"]
    made = {}
    for kind in ("sketch", "adding"):
        ann = taught(new_agent, "ann", kind, parts[0], demo_tasks / "dice")
        made[kind] = ann.bank.find("dice").tensors, ann.continue_task("shapes", parts[2])[0].tensors
    for sketched, added in zip(*made.values(), strict=True):
        own = {
            name: added["adding" + name.removeprefix("sketch")] for name in sketched if name.startswith("sketch.")
        }
        assert own.keys() == SketchAnchor.specs(2, 1).keys()
        assert all(np.array_equal(value, sketched[name]) for name, value in own.items())

    modules = [ann.compose("mixed", picks)[0]]
    modules += ann.compose("more", [f"shapes:{name}" for name in shapes.classes], images=parts[1])[:1]
    share(taught(new_agent, "bob", "adding", parts[1]), "shapes", ann, tmp_path)
    ann.merge([f"shapes@{ann.teachers.name(m.card)}" for m in ann.bank if m.card.task == "shapes"], "both")
    assert {module.card.task for module in ann.merged()} == {"both"}
    assert all(module.card.anchors == ("adding",) for module in [*modules, *ann.merged()])
    assert right(ann, demo_tasks, "shapes") > 0.5
    assert right(ann, demo_tasks, "dice") > 0.5


@pytest.mark.long
@pytest.mark.parametrize("kind", NEW)
def test_a_received_module_of_a_new_kind_is_vetted(new_agent: NewAgent, demo_tasks: Path, kind: str) -> None:
    agent = taught(new_agent, "ann", kind, demo_tasks / "shapes", demo_tasks / "dice")
    stranger = taught(new_agent, "bob", kind, demo_tasks / "latin").bank.find("latin")
    shapes, quarantine = agent.bank.find("shapes"), quarantine_of(agent, list(agent.bank))
    assert quarantine.judge(list(agent.bank), [stranger]).accepted == (stranger,)
    inner = NEW[kind].read(shapes.tensors).inner
    nearer = NEW[kind](replace(inner, means=inner.means * np.float32(0.98)))  # to all images, so that it wins them
    second = forged(shapes, nearer.tensors())
    assert quarantine.judge(list(agent.bank), [second]).accepted == (second,)
    liar = forged(shapes, nearer.tensors(), classes=shapes.card.classes[1:] + shapes.card.classes[:1])
    assert [held.module for held in quarantine.judge(list(agent.bank), [liar]).held] == [liar]


@pytest.mark.long
@pytest.mark.parametrize("kind", ["plain", "divisible"])
def test_an_operation_that_a_kind_does_not_support_is_refused_with_a_reason(
    new_agent: NewAgent, shapes: TaskImages, demo_tasks: Path, tmp_path: Path, kind: str
) -> None:
    parts = dealt(shapes, 2)
    ann = taught(new_agent, "ann", kind, parts[0], demo_tasks / "dice")
    bob = taught(new_agent, "bob", kind, parts[1])
    share(bob, "shapes", ann, tmp_path)
    assert right(ann, demo_tasks, "dice") > 0.5
    both = [f"shapes@{ann.teachers.name(m.card)}" for m in ann.bank if m.card.task == "shapes"]
    with pytest.raises(SettingsMismatchError, match="expected sketch or adding: only these can be extended"):
        ann.continue_task("shapes", parts[1])
    with pytest.raises(SettingsMismatchError, match="expected sketch or adding: only these can be merged"):
        ann.merge(both)
    picks = [f"{both[0]}:{name}" for name in shapes.classes]
    if kind == "divisible":
        ann.compose("copied", picks[:2])
        with pytest.raises(SettingsMismatchError, match="divisible anchors cannot add further images"):
            ann.compose("more", picks, images=parts[1])
    else:
        with pytest.raises(SettingsMismatchError, match="expected sketch or maha or adding or divisible anchors"):
            ann.compose("copied", picks[:2])

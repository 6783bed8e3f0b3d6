"""What the settings of all baselines have in common. Nothing here loads torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from skillmesh.common.choices import Representation
from skillmesh_challenge.errors import RunError
from skillmesh_challenge.methods import refuse_wrong_settings

if TYPE_CHECKING:
    from skillmesh_challenge.baselines.learner import Learner
    from skillmesh_challenge.run import Plan
    from skillmesh_challenge.stage import Stage

Start = Literal["pretrained", "random"]
Label = Literal["given", "withheld"]
Norms = Literal["frozen", "trained"]
Schedule = Literal["one-cycle", "constant"]
Number = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Positive = Annotated[float, Field(ge=1e-12, allow_inf_nan=False)]
WholeNumber = Annotated[int, Field(ge=0)]
Count = Annotated[int, Field(ge=1)]
Share = Annotated[float, Field(gt=0, le=1)]
Grid = tuple[dict[str, Any], ...]


def every(**values: Sequence[Any]) -> Grid:
    """Each value of each setting with each of all others."""
    return tuple(dict(zip(values, some, strict=True)) for some in product(*values.values()))


@dataclass(frozen=True)
class Baseline:
    """What all have in common: the backbone that ours uses, and whether the task is told at the test."""

    name: str
    backbone: str = "lite0"
    weights: str | None = None
    label: Label = "given"
    """The paper tells its baselines the task of every test image; `withheld` lets a method find it its own way."""

    kind: ClassVar[str]
    made_by: ClassVar[str]
    """Module and class of the learner."""
    parallel: ClassVar[bool] = False
    """Whether several agents can learn at once."""
    grid: ClassVar[Grid] = ()
    """The settings that tuning tries, as changes: equally many for every method."""

    def __post_init__(self) -> None:
        refuse_wrong_settings(self)

    def settings_to_try(self) -> Grid:
        """By tuning."""
        return self.grid

    def refuse(self, plan: Plan) -> None:
        """Whatever a learner in one process cannot do is said before a run begins."""
        if plan.agents > 1 and not self.parallel:
            raise RunError(
                f"{self.name} learns in sequence: a task begins where the one before it ended. The run has "
                f"{plan.agents} agents, expected one; give --agents 1"
            )
        asked = {"--mesh": plan.mesh, "--cluster": plan.cluster, "--reuse": plan.reuse}
        asked |= {"--workers": (plan.workers or 1) > 1}
        if given := [option for option, value in asked.items() if value]:
            raise RunError(
                f"{self.name} learns in this process and makes no modules; leave {', '.join(given)} away"
            )

    def settings(self) -> dict[str, Any]:
        return asdict(self) | {"kind": self.kind}

    def learner(self, stage: Stage) -> Learner:
        """A new learner that knows nothing."""
        module, _, name = self.made_by.partition(":")
        made: Learner = getattr(import_module(f"skillmesh_challenge.baselines.{module}"), name).of(self, stage)
        return made

    def play(self, stage: Stage) -> None:
        from skillmesh_challenge.baselines.play import play

        play(self, stage)


@dataclass(frozen=True)
class TrainedSettings(Baseline):
    """One network, trained on task after task.

    The paper gives no steps or epochs of its baselines. Rates are tuned; epochs and batch are the same for all.
    """

    start: Start = "pretrained"
    size: Annotated[int, Field(ge=8)] | None = None
    """Width and height of images, if not the network's own."""
    epochs: Count = 6
    batch: Count = 32
    rate: Number = 0.003
    """Highest step of the body: SGD with momentum."""
    head_rate: Number = 0.01
    momentum: Number = 0.9
    schedule: Schedule = "one-cycle"
    norms: Norms = "frozen"
    """Whether batch norms keep the statistics of the start. With trained ones all methods forget much more: a
    norm's statistics are of the newest task, and nothing protects them."""

    from_nothing: ClassVar[Grid] = ()
    """What tuning tries of a start at random, where that asks for other settings than a pretrained one."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.momentum >= 1:
            raise RunError(f"the method {self.name!r} has momentum = {self.momentum}; expected less than 1")
        if self.norms == "trained" and self.batch < 2:
            raise RunError(
                f"the method {self.name!r} has batch = {self.batch} and norms = 'trained'; expected 2 or more: "
                "one image has no statistics"
            )

    def settings_to_try(self) -> Grid:
        return self.from_nothing if self.start == "random" and self.from_nothing else self.grid


@dataclass(frozen=True)
class Frozen(Baseline):
    """The backbone as it is, and a closed form that tells all classes of all tasks apart."""

    label: Label = "withheld"
    """They never need it."""
    calibration: str | None = None
    representation: Representation = "features"
    """Their papers use the features; on the `descriptor` they have what ours has."""

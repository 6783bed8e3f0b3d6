"""Settings that all baselines share. This package does not import torch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from itertools import product
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import Field

from skillmesh.common.choices import Representation
from skillmesh.common.extras import TORCH
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
    """Return the grid of all combinations of the values."""
    return tuple(dict(zip(values, chosen, strict=True)) for chosen in product(*values.values()))


@dataclass(frozen=True)
class Baseline:
    """Settings of every baseline: the backbone that skillmesh uses, and whether the task is given at test time."""

    name: str
    backbone: str = "lite0"
    weights: str | None = None
    label: Label = "given"
    """The paper gives its baselines the task of every test image; with `withheld` a method must infer it."""

    kind: ClassVar[str]
    made_by: ClassVar[str]
    """Module and class of the learner, as `module:Class`."""
    parallel: ClassVar[bool] = False
    """Whether several agents can learn in parallel."""
    grid: ClassVar[Grid] = ()
    """Settings that tuning tries, as changes to the defaults: equally many for every method."""

    def __post_init__(self) -> None:
        refuse_wrong_settings(self)

    def settings_to_try(self) -> Grid:
        """Return the settings that tuning tries."""
        return self.grid

    def refuse(self, plan: Plan) -> None:
        """Raise a RunError before the run begins if the plan asks for what this learner cannot do."""
        self.require_torch()
        if plan.agents > 1 and not self.parallel:
            raise RunError(
                f"{self.name} learns in sequence: a task begins where the one before it ended. The run has "
                f"{plan.agents} agents, expected one; give --agents 1"
            )
        asked = {"--mesh": plan.mesh, "--cluster": plan.cluster, "--reuse": plan.reuse}
        asked |= {"--workers": (plan.workers or 1) > 1}
        if given := [option for option, value in asked.items() if value]:
            raise RunError(
                f"{self.name} learns in this process and makes no modules; leave out {', '.join(given)}"
            )

    def require_torch(self) -> None:
        """Raise a RunError if PyTorch is missing, which every baseline needs."""
        TORCH.require(f"the method {self.name!r}", RunError)

    def settings(self) -> dict[str, Any]:
        return asdict(self) | {"kind": self.kind}

    def learner(self, stage: Stage) -> Learner:
        """Return a new, untrained learner."""
        module, _, name = self.made_by.partition(":")
        learner: Learner = getattr(import_module(f"skillmesh_challenge.baselines.{module}"), name).of(self, stage)
        return learner

    def play(self, stage: Stage) -> None:
        from skillmesh_challenge.baselines.play import play

        play(self, stage)


@dataclass(frozen=True)
class TrainedSettings(Baseline):
    """One network, trained on one task after another.

    The paper gives no learning rates or epochs for its baselines. We tune rates; epochs and batch size are fixed.
    """

    start: Start = "pretrained"
    size: Annotated[int, Field(ge=8)] | None = None
    """Width and height of images in pixels; None: the network's own."""
    epochs: Count = 6
    batch: Count = 32
    rate: Number = 0.003
    """Highest learning rate of the body; the optimiser is SGD with momentum."""
    head_rate: Number = 0.01
    momentum: Number = 0.9
    schedule: Schedule = "one-cycle"
    norms: Norms = "frozen"
    """`frozen` keeps the initial batch-norm statistics. With `trained`, all methods forget much more: the
    statistics follow the newest task, and nothing protects them."""

    random_start_grid: ClassVar[Grid] = ()
    """Grid for a random start, if that needs other settings than a pretrained one."""

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
        return self.random_start_grid if self.start == "random" and self.random_start_grid else self.grid


@dataclass(frozen=True)
class Frozen(Baseline):
    """An unchanged backbone, and a closed-form classifier over all classes of all tasks."""

    label: Label = "withheld"
    """These methods never need the task label."""
    calibration: str | None = None
    representation: Representation = "features"
    """The papers use `features`; with `descriptor` they get the same input as skillmesh."""

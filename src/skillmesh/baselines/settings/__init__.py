"""What the settings of all baselines have in common. Nothing here loads torch."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Literal, get_args

from skillmesh.errors import RunError
from skillmesh.names import Representation

if TYPE_CHECKING:
    from skillmesh.baselines.learner import Learner
    from skillmesh.challenge.stage import Stage

Start = Literal["pretrained", "random"]
Label = Literal["given", "withheld"]
Norms = Literal["frozen", "trained"]
Schedule = Literal["one-cycle", "constant"]


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
    grid: ClassVar[tuple[dict[str, Any], ...]] = ()
    """The settings that tuning tries, as changes: equally many for every method."""

    def __post_init__(self) -> None:
        for name, allowed in self._choices().items():
            if getattr(self, name) not in get_args(allowed):
                raise RunError(
                    f"the method {self.name!r} has {name} = {getattr(self, name)!r}; "
                    f"expected {', '.join(get_args(allowed))}"
                )

    def _choices(self) -> dict[str, Any]:
        return {"label": Label}

    def settings(self) -> dict[str, Any]:
        return asdict(self) | {"kind": self.kind}

    def learner(self, stage: Stage) -> Learner:
        """A new learner that knows nothing."""
        module, _, name = self.made_by.partition(":")
        made: Learner = getattr(import_module(f"skillmesh.baselines.{module}"), name).of(self, stage)
        return made

    def play(self, stage: Stage) -> None:
        from skillmesh.baselines.play import play

        play(self, stage)


@dataclass(frozen=True)
class Trained(Baseline):
    """One network, trained on task after task. The paper gives no steps or epochs of its baselines: tuned."""

    start: Start = "pretrained"
    size: int | None = None
    """Width and height of images, if not the network's own."""
    epochs: int = 6
    batch: int = 32
    rate: float = 0.01
    """Highest step of the body: SGD with momentum."""
    head_rate: float = 0.01
    momentum: float = 0.9
    schedule: Schedule = "one-cycle"
    norms: Norms = "frozen"
    """Whether batch norms keep the statistics of the start. With trained ones all methods forget much more: a
    norm's statistics are of the newest task, and nothing protects them."""

    def _choices(self) -> dict[str, Any]:
        return super()._choices() | {"start": Start, "norms": Norms, "schedule": Schedule}


@dataclass(frozen=True)
class Frozen(Baseline):
    """The backbone as it is, and a closed form that tells all classes of all tasks apart."""

    calibration: str | None = None
    representation: Representation = "features"
    """Their papers use the features; on the `descriptor` they have what ours has."""

    def _choices(self) -> dict[str, Any]:
        return super()._choices() | {"representation": Representation}

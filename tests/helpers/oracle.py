"""Results of avalanche-lib on a small stream, with its own plugins.

Its penalties as in its source, to set ours to the same strength (θ* are the weights after the last task):

    EWC         λ Σₖ Fₖ (θ - θₖ)²   F: mean square of gradients of the loss, by the true labels
    Online EWC  λ F̃ (θ - θ*)²       F̃ ← γ F̃ + F
    SI          λ/2 Ω (θ - θ*)²      Ω: sum over tasks of path integral / (way² + eps)
    MAS         λ Ω (θ - θ*)²        Ω: mean size of gradients of the squared norm of logits
    LwF         α Σₖ KLₖ             at temperature T, no factor T², all old heads, on the new task's points
    replay      one mean over B new points and B of the memory

Where it departs from the methods' papers, the plugins below correct it, each by a line or two: it takes
gradients of whole batches (EWC, MAS), mixes old and new importances (MAS), clips importances at 0.001 and counts
the penalty's own gradient as the task's (SI). And on a CPU its SI does nothing at all.
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from streams import BATCH, CLASSES, EPOCHS, HIDDEN, RATE, TASKS, Course, SmallStream, SmallTask, new_body
from torch import nn
from torch.utils.data import Sampler

from skillmesh.backbone.building import import_timm

if TYPE_CHECKING:
    from avalanche.benchmarks import CLExperience

STRENGTHS: dict[str, dict[str, Any]] = {
    "naive": {},
    "ewc": {"ewc_lambda": 5.0},
    "online-ewc": {"ewc_lambda": 5.0, "mode": "online", "decay_factor": 0.9},
    "ewc-of-batches": {"ewc_lambda": 5.0 * BATCH},
    "si": {"si_lambda": 0.05, "eps": 0.01},
    "mas": {"lambda_reg": 0.01},
    "lwf": {"alpha": 1.0, "temperature": 2.0},
    "replay": {"per_task": 40},
}


def import_avalanche() -> None:
    """Make its modules importable, or skip with the reason."""
    import_timm()  # makes torchvision work beside a CPU build of torch, also for avalanche
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a stand-in for the quadratic programming solver, which only GEM needs
        pytest.importorskip(
            "avalanche.training",
            reason="avalanche-lib is not installed; `pip install -c constraints.txt -e '.[oracle]'` brings it",
            exc_type=ImportError,
        )


def avalanche_course(
    method: str, stream: SmallStream, orders: Sequence[torch.Generator] | None = None, **changes: Any
) -> Course:
    """Learn the stream by one of avalanche's methods.

    `orders` shuffle each task's points in all epochs (replay draws its own order); `changes` are to its strengths.
    """
    import_avalanche()
    experiences = _experiences(stream)
    model = _model(stream, experiences)
    with torch.random.fork_rng(devices=[]), _quiet(), _copied_weights():
        torch.manual_seed(stream.seed)  # where avalanche takes no generator, it uses the global one
        strategy = _strategy(model, _plugins(method, STRENGTHS[method] | changes), orders)
        right_after = []
        for position, (experience, task) in enumerate(zip(experiences, stream.tasks, strict=True)):
            strategy.train(experience)
            right_after.append(_accuracy(model, task, position))
    final = [_accuracy(model, task, position) for position, task in enumerate(stream.tasks)]
    return Course(tuple(right_after), tuple(final))


def _strategy(model: nn.Module, plugins: list[Any], orders: Sequence[torch.Generator] | None) -> Any:
    from avalanche.training.supervised import Naive
    from torch.utils.data import DataLoader

    class Ordered(Naive):
        def make_train_dataloader(self, **kwargs: Any) -> None:
            data = self.adapted_dataset
            order = orders[self.clock.train_exp_counter] if orders is not None else None
            self.dataloader = DataLoader(
                data, BATCH, sampler=_Shuffled(len(data), order), collate_fn=data.collate_fn
            )

    return Ordered(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
        criterion=nn.CrossEntropyLoss(),
        train_mb_size=BATCH,
        train_epochs=EPOCHS,
        plugins=plugins,
        evaluator=None,
    )


class _Shuffled(Sampler[int]):
    """A sampler with a new order each epoch. (Torch's own draws twice per epoch: no other loop could follow.)"""

    def __init__(self, count: int, order: torch.Generator | None) -> None:
        self._count, self._order = count, order

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return iter(torch.randperm(self._count, generator=self._order).tolist())


def _experiences(stream: SmallStream) -> list[CLExperience]:
    from avalanche.benchmarks import benchmark_from_datasets, with_classes_timeline, with_task_labels
    from avalanche.benchmarks.utils import _make_taskaware_classification_dataset
    from torch.utils.data import TensorDataset

    datasets = [
        _make_taskaware_classification_dataset(
            TensorDataset(task.x, task.labels), targets=task.labels.tolist(), task_labels=position
        )
        for position, task in enumerate(stream.tasks)
    ]
    return list(with_classes_timeline(with_task_labels(benchmark_from_datasets(train=datasets))).train_stream)


def _model(stream: SmallStream, experiences: list[CLExperience]) -> nn.Module:
    """Return a network with all heads from the beginning, so that their initial weights can be set."""
    from avalanche.models import MultiHeadClassifier, MultiTaskModule
    from avalanche.models.dynamic_modules import avalanche_model_adaptation

    class Network(MultiTaskModule):
        def __init__(self) -> None:
            super().__init__()
            self.body, self.heads = new_body(), MultiHeadClassifier(HIDDEN, CLASSES, masking=False)

        def forward(self, x: torch.Tensor, task_labels: torch.Tensor | None) -> Any:
            return self.heads(self.body(x), task_labels)

    model = Network().eval()  # in training it would count the tasks as known
    for experience in experiences:
        avalanche_model_adaptation(model, experience)
    model.body.load_state_dict(stream.body)
    for position, head in enumerate(stream.heads):
        model.heads.classifiers[str(position)].classifier.load_state_dict(head)
    return model


def _accuracy(model: nn.Module, task: SmallTask, position: int) -> float:
    with torch.no_grad():
        logits = model.eval()(task.test_x, torch.full_like(task.test_labels, position))
    return float((logits.argmax(1) == task.test_labels).double().mean())


def _plugins(method: str, strengths: dict[str, Any]) -> list[Any]:
    from avalanche.training.plugins import EWCPlugin, LwFPlugin, ReplayPlugin
    from avalanche.training.storage_policy import ExperienceBalancedBuffer

    match method:
        case "naive":
            return []
        case "ewc" | "online-ewc":
            return [_ewc(**strengths)]
        case "ewc-of-batches":  # as it is: around a minimum a batch's mean gradient has 1/B of a point's variance
            return [EWCPlugin(**strengths)]
        case "si":
            return [_si(**strengths)]
        case "mas":
            return [_mas(**strengths)]
        case "lwf":
            return [LwFPlugin(**strengths)]
        case "replay":
            size = TASKS * strengths["per_task"]
            growing = ExperienceBalancedBuffer(size, adaptive_size=False, num_experiences=TASKS)
            return [ReplayPlugin(size, storage_policy=growing)]
    raise ValueError(method)


def _ewc(**strengths: Any) -> Any:
    """Return avalanche's EWC with gradients of one point at a time, as the Fisher information requires."""
    from avalanche.training.plugins import EWCPlugin

    class PointByPoint(EWCPlugin):
        def compute_importances(self, *args: Any, **kwargs: Any) -> Any:
            *others, _ = args
            return super().compute_importances(*others, 1, **kwargs)

    return PointByPoint(**strengths)


def _si(si_lambda: float, eps: float) -> Any:
    """Return avalanche's SI, unclipped: at 0.001 all importances of this small net would be equal."""
    from avalanche.training.plugins import SynapticIntelligencePlugin

    class Unclipped(SynapticIntelligencePlugin):
        def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            self.update_ewc_data(
                strategy.model, self.ewc_data, self.syn_data, math.inf, self.excluded_parameters, 1, eps=self.eps
            )
            for importance in self.ewc_data[1].values():
                importance.data = importance.data.clamp(min=0)  # a negative importance would push weights away

        def after_update(self, strategy: Any, **kwargs: Any) -> None:
            """Leave only the gradient of the task's loss in `grad`, which the path integral uses."""
            for name, weight in self.allowed_parameters(strategy.model, self.excluded_parameters):
                before = self.syn_data["old_theta"][name].data
                pull = si_lambda * self.ewc_data[1][name].data * (before - self.ewc_data[0][name].data)
                weight.grad -= pull.view_as(weight)

    return Unclipped(si_lambda, eps=eps)


def _mas(lambda_reg: float) -> Any:
    """Return avalanche's MAS point by point, and with the sum over tasks of the method's paper."""
    from avalanche.training.plugins import MASPlugin

    class Summing(MASPlugin):
        def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            learned = strategy.clock.train_exp_counter
            self.alpha = learned / (learned + 1)  # turns its mixture into the mean over tasks
            self._lambda = lambda_reg * learned

        def _get_importance(self, strategy: Any) -> Any:
            with mock.patch.object(strategy, "train_mb_size", 1):
                return super()._get_importance(strategy)

    return Summing()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Silence its warnings about missing loggers and its own deprecated calls."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True):
        yield


@contextlib.contextmanager
def _copied_weights() -> Iterator[None]:
    """Make its SI keep copies: on a CPU it keeps views of the current weights, so that no weight ever moved."""
    from avalanche.training.plugins import SynapticIntelligencePlugin

    def extract(model: nn.Module, target: dict[str, Any], excluded: set[str]) -> None:
        for name, weight in SynapticIntelligencePlugin.allowed_parameters(model, excluded):
            target[name].data = weight.detach().flatten().clone()

    with mock.patch.object(SynapticIntelligencePlugin, "extract_weights", staticmethod(extract)):
        yield

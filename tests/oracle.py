"""What avalanche-lib makes of a small stream, with its own plugins.

Its penalties as its source has them, to set ours to the same strength (B is the batch, F of batches of B):

    EWC         λ Σₖ Fₖ (θ - θₖ)²     F: mean over batches of the squared gradient of the batch's mean loss
    Online EWC  λ F̃ (θ - θ*)²         F̃ ← γ F̃ + F
    SI          λ/2 Ω (θ - θ*)²        Ω: sum over tasks of path integral / (way² + eps)
    MAS         λ Ω (θ - θ*)²          Ω: mean over batches of |gradient of the batch's mean squared norm of logits|
    LwF         α Σₖ KLₖ               at temperature T, no factor T², all old heads, on the new task's points
    replay      one mean over B new points and B of the memory
"""

from __future__ import annotations

import contextlib
import io
import math
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import pytest
import torch
from streams import BATCH, CLASSES, EPOCHS, HIDDEN, RATE, TASKS, Course, SmallStream, SmallTask, new_body
from torch import nn

from skillmesh.backbone.compat import import_timm

if TYPE_CHECKING:
    from avalanche.benchmarks import CLExperience

STRENGTHS: dict[str, dict[str, Any]] = {
    "naive": {},
    "ewc": {"ewc_lambda": 100.0},
    "online-ewc": {"ewc_lambda": 100.0, "mode": "online", "decay_factor": 0.9},
    "si": {"si_lambda": 1.0, "eps": 0.01},
    "mas": {"lambda_reg": 1.0},
    "lwf": {"alpha": 2.0, "temperature": 2.0},
    "replay": {"per_task": 40},
}


def import_avalanche() -> None:
    """Make its modules importable, or skip with the reason."""
    import_timm()  # mends torchvision beside a CPU build of torch, for avalanche too
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it has no solver of quadratic programs, which only GEM needs
        pytest.importorskip(
            "avalanche.training",
            reason="avalanche-lib is not installed; `pip install -c constraints.txt -e '.[oracle]'` brings it",
            exc_type=ImportError,
        )


def avalanche_course(method: str, stream: SmallStream, **changes: Any) -> Course:
    """Learn the stream by one of avalanche's methods; `changes` are of its strengths."""
    import_avalanche()
    from avalanche.training.supervised import Naive

    experiences = _experiences(stream)
    model = _model(stream, experiences)
    plugins = _plugins(method, STRENGTHS[method] | changes)
    with torch.random.fork_rng(devices=[]), _quiet(), _copied_weights():
        torch.manual_seed(stream.seed)  # avalanche shuffles, and draws its memory, by the global generator
        strategy = Naive(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
            criterion=nn.CrossEntropyLoss(),
            train_mb_size=BATCH,
            train_epochs=EPOCHS,
            plugins=plugins,
            evaluator=None,
        )
        right_after = []
        for position, (experience, task) in enumerate(zip(experiences, stream.tasks, strict=True)):
            strategy.train(experience)
            right_after.append(_accuracy(model, task, position))
    final = [_accuracy(model, task, position) for position, task in enumerate(stream.tasks)]
    return Course(tuple(right_after), tuple(final))


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
    """A network with all heads from the beginning, so that their first weights can be given."""
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


def _si(si_lambda: float, eps: float) -> Any:
    """Avalanche's SI without its clip at 0.001, which would make all importances of this small net equal."""
    from avalanche.training.plugins import SynapticIntelligencePlugin

    class Unclipped(SynapticIntelligencePlugin):
        def after_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            self.update_ewc_data(
                strategy.model, self.ewc_data, self.syn_data, math.inf, self.excluded_parameters, 1, eps=self.eps
            )
            for importance in self.ewc_data[1].values():
                importance.data = importance.data.clamp(min=0)  # a negative one would drive weights away

    return Unclipped(si_lambda, eps=eps)


def _mas(lambda_reg: float) -> Any:
    """Avalanche's MAS with the sum over tasks of the method's paper instead of a mixture of old and new."""
    from avalanche.training.plugins import MASPlugin

    class Summing(MASPlugin):
        def before_training_exp(self, strategy: Any, **kwargs: Any) -> None:
            learned = strategy.clock.train_exp_counter
            self.alpha = learned / (learned + 1)  # makes of its mixture the mean over tasks
            self._lambda = lambda_reg * learned

    return Summing()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """It tells of loggers that it has not and of calls between its own parts that will go."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings(record=True):
        yield


@contextlib.contextmanager
def _copied_weights() -> Iterator[None]:
    """On a CPU its SI keeps views of the living weights, so that no weight ever moved: let it keep copies."""
    from avalanche.training.plugins import SynapticIntelligencePlugin

    def extract(model: nn.Module, target: dict[str, Any], excluded: set[str]) -> None:
        for name, weight in SynapticIntelligencePlugin.allowed_parameters(model, excluded):
            target[name].data = weight.detach().flatten().clone()

    with mock.patch.object(SynapticIntelligencePlugin, "extract_weights", staticmethod(extract)):
        yield

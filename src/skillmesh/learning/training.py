"""Training of an adaptation (biases, or a pattern on the input) of a frozen network, together with the head.

The network's weights and statistics stay as they are: their gradients are not computed, and the layers before the
first trained one run only once (`backbone/suffix.py`).
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skillmesh.backbone.calibration import CLIP
from skillmesh.backbone.spec import Place
from skillmesh.backbone.suffix import PassCosts, Start, Suffix, pass_costs
from skillmesh.common.choices import Representation
from skillmesh.common.files import PRIVATE, writing
from skillmesh.data.images import Pixels
from skillmesh.errors import DataError
from skillmesh.learning.head import Head, Labels
from skillmesh.numerics.arrays import Costs, spend
from skillmesh.numerics.process import seeded

if TYPE_CHECKING:
    from skillmesh.backbone.calibration import Calibration
    from skillmesh.backbone.torch_network import TorchNetwork

log = logging.getLogger(__name__)

DIGEST = hashlib.sha256().digest_size
"""Number of bytes at the beginning of a checkpoint that hold the hash of the rest."""
BEGIN_BATCH = 128
"""Number of images per batch where no gradient is needed: up to the first trained layer, and in validation."""


@dataclass(frozen=True)
class Examples:
    """Decoded images of a task and their classes."""

    images: Pixels
    labels: Labels

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class TrainingSettings:
    """Length, step sizes and starting point of a training."""

    epochs: int = 3
    batch: int = 32
    rate: float = 0.01
    """Highest learning rate of the biases or the pattern (Adam, one cycle)."""
    head_rate: float = 0.001
    patience: int = 2
    """Number of epochs without a better validation loss after which training ends."""
    judged_from: float = 0.5
    """Share of the epochs after which validation begins: before, steps are too large for a result to keep."""
    size: int | None = None
    """Width and height of the training images, if smaller than the network's own; cost grows with their area."""
    flips: bool = False
    """Whether images are mirrored at random, left to right; only where whole images go through the network."""
    warm: bool = False
    """Whether the head starts from the one that was fitted to the unadapted network."""
    seed: int = 0


@dataclass(frozen=True)
class Trained:
    """Result of a training: the values of least validation loss, and the head trained with them."""

    values: NDArray[np.float32]
    head: Head
    losses: tuple[float, ...]
    """Validation losses, in the order in which they were computed."""
    costs: Costs


class Space:
    """`represent` with gradients: converts raw descriptors to the head's inputs."""

    def __init__(
        self, calibration: Calibration, representation: Representation, compact: bool, device: torch.device
    ) -> None:
        self._features, self._representation = calibration.features, representation
        self.facts = [calibration.fingerprint, representation, compact]
        """The settings that the conversion depends on."""
        self._mean, self._std = (torch.tensor(a, device=device) for a in (calibration.mean, calibration.std))
        self._basis = torch.tensor(calibration.basis, device=device) if compact else None

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        features = raw[:, : self._features]
        if self._representation == "features":
            return features
        rooted = (features.clamp_min(0) + 1e-9).sqrt()  # the gradient of the root is infinite at zero
        if self._representation == "sqrt-features":
            return rooted
        whole = torch.cat([rooted, raw[:, self._features :]], dim=1)
        standard = ((whole - self._mean) / self._std).clamp(-CLIP, CLIP)
        return standard if self._basis is None else standard @ self._basis.T


class Training(ABC):
    """The training loop. Subclasses define what is trained and how it enters the forward pass."""

    def __init__(
        self,
        network: TorchNetwork,
        space: Space,
        parts: tuple[Examples, Examples],
        settings: TrainingSettings,
        head: Head,
        places: Sequence[Place],
    ) -> None:
        """`parts` are the training and the validation images; `places` are the layers to run in every epoch."""
        train, val = parts
        if not len(val):
            raise DataError(
                "the task has no validation images; training needs some to decide when to stop; add images"
            )
        self._network, self._space, self._settings = network, space, settings
        self._suffix = Suffix(network, places, len(train) + len(val))
        with seeded(settings.seed, network.device):
            self._weight, self._bias = self._initial_head(head)
        self._labels, self._val_labels = (torch.tensor(e.labels, device=network.device) for e in (train, val))
        self._starts, self._val_starts = self._begin(train), self._begin(val)
        self._count, self._val_count = len(train), len(val)
        self._values = nn.Parameter(self._initial_values())
        self._optimiser = torch.optim.Adam(
            [
                {"params": [self._values], "lr": settings.rate},
                {"params": [self._weight, self._bias], "lr": settings.head_rate},
            ]
        )
        steps = max(1, math.ceil(self._count / settings.batch)) * settings.epochs
        rates = [settings.rate, settings.head_rate]
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(self._optimiser, rates, total_steps=steps)
        self._costs, per_image = Costs(), pass_costs(network, settings.size)
        self._forward = per_image.from_layer(self._suffix.first)
        self._backward = self._backward_macs(per_image)
        self._costs.add("forward", (per_image.forward - self._forward) * (self._count + self._val_count))
        self.losses: list[float] = []
        self._best = self._state()

    def run(self, checkpoint: Path | None = None, progress: Callable[[int], None] = lambda _: None) -> Trained:
        """Train, resuming from `checkpoint` if that file exists; tell `progress` the size of each batch."""
        self._identity = "" if checkpoint is None else self._fingerprint()
        epoch = self._resume(checkpoint)
        while epoch < self._settings.epochs and not self._out_of_patience():
            self._epoch(epoch, progress)
            epoch += 1
            if epoch >= self._settings.judged_from * self._settings.epochs:
                self._validate()
            self._save(checkpoint, epoch)
        for kind, macs in self._costs.spent.items():
            spend(kind, macs)
        best = {name: tensor.cpu().numpy() for name, tensor in self._best.items()}
        return Trained(best["values"], Head(best["weight"], best["bias"]), tuple(self.losses), self._costs)

    # Defined by subclasses.

    @abstractmethod
    def _initial_values(self) -> torch.Tensor: ...

    @abstractmethod
    def _raw(self, start: Start) -> torch.Tensor: ...

    @abstractmethod
    def _backward_macs(self, per_image: PassCosts) -> int: ...

    def _kept(self, values: torch.Tensor) -> torch.Tensor:
        """Return the trained values, with zeros for those that are not trained."""
        return values

    # Parts of the loop.

    def _initial_head(self, head: Head) -> tuple[nn.Parameter, nn.Parameter]:
        device = self._network.device
        weight, bias = (torch.tensor(a, dtype=torch.float32, device=device) for a in (head.weight, head.bias))
        if not self._settings.warm:
            bound = 1 / math.sqrt(weight.shape[1])
            weight, bias = torch.empty_like(weight).uniform_(-bound, bound), torch.zeros_like(bias)
        return nn.Parameter(weight), nn.Parameter(bias)

    def _begin(self, examples: Examples) -> Start:
        """Return the activations before the first trained layer, or the images where no layer precedes it."""
        batches = [
            self._suffix.begin(self._sized(examples.images[start : start + BEGIN_BATCH]))
            for start in range(0, len(examples), BEGIN_BATCH)
        ]
        return Start(*map(torch.cat, zip(*batches, strict=True)))

    def _sized(self, pixels: Pixels) -> torch.Tensor:
        images = torch.tensor(pixels, device=self._network.device)
        if self._settings.size is None:
            return images
        planes = images.permute(0, 3, 1, 2).float()
        small = nn.functional.interpolate(planes, self._settings.size, mode="bilinear", antialias=True)
        return small.round().to(torch.uint8).permute(0, 2, 3, 1)

    def _logits(self, start: Start) -> torch.Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=self._network.device.type == "cuda"):
            raw = self._raw(start)
        return self._space(raw.float()) @ self._weight.T + self._bias

    def _epoch(self, epoch: int, progress: Callable[[int], None]) -> None:
        generator = torch.Generator().manual_seed(self._settings.seed * 1000 + epoch)
        order = torch.randperm(self._count, generator=generator).to(self._network.device)
        for rows in torch.split(order, self._settings.batch):
            start = Start(*(part[rows] for part in self._starts))
            logits = self._logits(self._mirrored(start, generator) if self._settings.flips else start)
            loss = nn.functional.cross_entropy(logits, self._labels[rows])
            self._optimiser.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            self._optimiser.step()
            self._schedule.step()
            progress(len(rows))
        self._costs.add("forward", self._forward * self._count)
        self._costs.add("backward", self._backward * self._count)
        self._costs.add("head", 2 * self._weight.numel() * self._count)

    def _mirrored(self, start: Start, generator: torch.Generator) -> Start:
        """Mirror about half of the images; activations inside the network cannot be mirrored."""
        if self._suffix.first:
            return start
        images = start.activations
        flipped = torch.rand(len(images), generator=generator).to(images.device) < 0.5
        return start._replace(activations=torch.where(flipped[:, None, None, None], images.flip(2), images))

    def _validate(self) -> None:
        """Compute the validation loss, and keep the current state if it is the best so far."""
        total = 0.0
        with torch.no_grad():
            for first in range(0, self._val_count, BEGIN_BATCH):
                batch = slice(first, first + BEGIN_BATCH)
                logits = self._logits(Start(*(part[batch] for part in self._val_starts)))
                total += float(nn.functional.cross_entropy(logits, self._val_labels[batch], reduction="sum"))
        self._costs.add("forward", self._forward * self._val_count)
        self._costs.add("head", self._weight.numel() * self._val_count)
        loss = total / max(1, self._val_count)
        if not self.losses or loss < min(self.losses):
            self._best = self._state()
        self.losses.append(loss)

    def _out_of_patience(self) -> bool:
        return bool(self.losses) and len(self.losses) - 1 - int(np.argmin(self.losses)) >= self._settings.patience

    def _state(self) -> dict[str, torch.Tensor]:
        parts = {"values": self._kept(self._values), "weight": self._weight, "bias": self._bias}
        return {name: part.detach().clone() for name, part in parts.items()}

    # A killed training resumes after its last complete epoch.

    def _fingerprint(self) -> str:
        """Hash all that a training depends on, so that the checkpoint of another training is not resumed."""
        facts = [type(self).__name__, asdict(self._settings), self._network.fingerprint, self._space.facts]
        digest = hashlib.sha256(json.dumps(facts).encode())
        kept = self._kept(torch.ones_like(self._values))
        images = *self._starts, self._labels, *self._val_starts, self._val_labels
        for part in (*images, kept, self._weight, self._bias):
            digest.update(part.detach().contiguous().cpu().numpy().tobytes())
        return digest.hexdigest()

    def _save(self, path: Path | None, epoch: int) -> None:
        if path is None:
            return
        state = {
            "of": self._identity,
            "epoch": epoch,
            "now": {"values": self._values, "weight": self._weight, "bias": self._bias},
            "best": self._best,
            "losses": self.losses,
            "spent": self._costs.spent,
            "optimiser": self._optimiser.state_dict(),
            "schedule": self._schedule.state_dict(),
        }
        content = io.BytesIO()
        torch.save(state, content)
        with writing(path, mode=PRIVATE, sync=False) as file:
            file.write(hashlib.sha256(content.getbuffer()).digest())
            file.write(content.getbuffer())

    def _resume(self, path: Path | None) -> int:
        """Load a checkpoint of this training; return the number of completed epochs (0 without a usable one)."""
        if path is None or not path.exists():
            return 0
        try:
            state = self._load(path)
        except Exception as error:  # torch raises many types for files that it has not written
            reason = " ".join(str(error).split())[:200]
            log.warning("the checkpoint %s cannot be used: %s; training starts from the beginning", path, reason)
            return 0
        if state["of"] != self._identity:
            return 0
        with torch.no_grad():
            for name, parameter in (("values", self._values), ("weight", self._weight), ("bias", self._bias)):
                parameter.copy_(state["now"][name])
        self._best, self.losses, self._costs = state["best"], state["losses"], Costs(state["spent"])
        self._optimiser.load_state_dict(state["optimiser"])
        self._schedule.load_state_dict(state["schedule"])
        return int(state["epoch"])

    def _load(self, path: Path) -> dict[str, Any]:
        """Read a checkpoint after checking its hash: torch may read a part of a damaged file."""
        data = path.read_bytes()
        digest, content = data[:DIGEST], data[DIGEST:]
        if hashlib.sha256(content).digest() != digest:
            raise ValueError("it is damaged, or from an earlier release")
        state: dict[str, Any] = torch.load(
            io.BytesIO(content), map_location=self._network.device, weights_only=True
        )
        return state

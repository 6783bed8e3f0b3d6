"""The frozen network on PyTorch: for training adaptations, for GPUs, and for any network of timm."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from threading import local
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from skillmesh.backbone.building import Biased, build, fold_batch_norms, marking_uncalled, record_pass
from skillmesh.backbone.calibration import Raw
from skillmesh.backbone.network import LARGEST_HALF, Network, fingerprint
from skillmesh.backbone.spec import WEIGHTS, NetworkSpec, Toes, exported_spec, spec_of
from skillmesh.backbone.toes import toe_features
from skillmesh.data.images import Pixels
from skillmesh.errors import BackboneError, DeviceError
from skillmesh.numerics.arrays import Floats
from skillmesh.numerics.process import keep_freed_memory


@contextmanager
def counting(layers: Mapping[str, nn.Module]) -> Iterator[dict[str, int]]:
    """Yield a dict that counts multiply–accumulates of these layers in this context, by name, over all images."""
    counted = dict.fromkeys(layers, 0)

    def hook(path: str) -> Any:
        def count(layer: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            assert isinstance(layer.weight, torch.Tensor)
            counted[path] += output.numel() * layer.weight[0].numel()

        return count

    hooks = [layer.register_forward_hook(hook(path)) for path, layer in layers.items()]
    try:
        yield counted
    finally:
        for handle in hooks:
            handle.remove()


TINY = 1e-12
MAX_WIDTH = 8192
"""Maximum width of a raw descriptor; the size of modules grows with it."""


class TorchNetwork(Network):
    """A frozen image network on PyTorch.

    On a CPU every image runs alone on one thread, and several images run in parallel. That is as fast as batches
    on all threads (lite0: faster, since the activations of one image fit in the CPU's cache), and the result
    depends neither on the batch nor on the number of threads.
    """

    engine = "torch"
    single_threaded = False

    def __init__(self, name: str = "lite0", weights: Path | None = None, device: str | None = None) -> None:
        if weights is not None and weights.is_dir():  # an exported network
            spec, weights = exported_spec(weights), weights / WEIGHTS
        else:
            spec = spec_of(name)
        model = build(spec, weights).eval().requires_grad_(False)
        self.spec = completed(spec, model)
        self._weights = weights
        self.device = usable_device(device)
        self.on_cpu = self.device.type == "cpu"
        if self.on_cpu:
            keep_freed_memory()
        self.fingerprint = fingerprint(self.spec, state_of(model))
        self.parameters = sum(p.numel() for p in model.parameters())
        taps = {path: model.get_submodule(path) for path in self.spec.taps or ()}
        self.features, self.channels = _probe_widths(model, taps, self.size, name)
        if self.spec.fold:
            fold_batch_norms(model)
        self.mean, self.std = (
            torch.tensor(values, device=self.device).mul(255).view(1, 3, 1, 1)
            for values in (self.spec.mean, self.spec.std)
        )
        self.model = model.to(self.device, memory_format=torch.channels_last)
        self._scratch = local()  # several threads run the network at once
        self.places = self.twin.places
        self.base = self.twin.base
        example = self.noise(), self.base
        self._run = record_pass(self._raw, example) if self.on_cpu else self._raw

    def biases(self, added: NDArray[np.floating]) -> torch.Tensor:
        """Return the vector that `forward` expects: the network's own biases plus those of a task."""
        return self.base + torch.from_numpy(added.astype(np.float32)).to(self.device)

    def forward(self, images: Pixels, added: Floats | None = None, recorded: bool = True) -> Raw:
        """Return the raw descriptors of a batch (n, size, size, 3), with a task's biases added if given.

        `recorded` matters only for one image on a CPU; hooks on the `twin` are not called in a recorded pass.
        """
        with torch.inference_mode(), self._exact():
            run = self._run if recorded and len(images) == 1 else self._raw
            biases = self.base if added is None else self.biases(added)
            rounded: Raw = run(self._on_device(images), biases).cpu().numpy()
            return rounded

    def toe_features(self, images: Pixels, added: Floats, toes: Toes) -> Floats:
        return toe_features(self, images, added, toes)

    @property
    def state(self) -> dict[str, NDArray[Any]]:
        """The weights as they were loaded, before batch norms were folded, by name."""
        return state_of(build(self.spec, self._weights))

    @property
    def twin(self) -> Biased:
        """This thread's own copy of the network, because layers point at the biases of the current pass."""
        if not hasattr(self._scratch, "twin"):
            self._scratch.twin = twin = Biased(self.model)
            for path, channels in self.channels.items():
                twin.model.get_submodule(path).register_forward_hook(self._pooling_hook(channels))
        own: Biased = self._scratch.twin
        return own

    def _on_device(self, images: Pixels) -> torch.Tensor:
        return torch.tensor(images, device=self.device)

    def _raw(self, images: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        return self.exact_raw(images, biases).clamp(-LARGEST_HALF, LARGEST_HALF).to(torch.float16)

    def exact_raw(self, images: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
        """Return raw descriptors before rounding, by differentiable operations."""
        self._scratch.pooled = []
        features = self.twin(self.normalised(images), biases)
        means, stds = zip(*self._scratch.pooled, strict=True) if self._scratch.pooled else ((), ())
        return torch.cat([features.float(), *means, *stds], dim=1)

    def noise(self, size: int | None = None) -> torch.Tensor:
        """Return an image of random pixels, always the same."""
        shape = (1, size or self.size, size or self.size, 3)
        generator = torch.Generator().manual_seed(0)
        return torch.randint(256, shape, dtype=torch.uint8, generator=generator).to(self.device)

    def _exact(self) -> AbstractContextManager[None]:
        """Return a context without TF32: descriptors of agents with and without a GPU must agree."""
        if self.device.type != "cuda":
            return nullcontext()
        exact: AbstractContextManager[None] = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        return exact

    def normalised(self, images: torch.Tensor) -> torch.Tensor:
        # The permuted view of NHWC pixels has torch's channels-last layout.
        return (images.permute(0, 3, 1, 2) - self.mean) / self.std

    def _pooling_hook(self, channels: int) -> Any:
        def pool(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            self._scratch.pooled.append(self.mean_and_std(output, channels))

        return pool

    @staticmethod
    def mean_and_std(output: torch.Tensor, channels: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the mean and the standard deviation of each channel over space."""
        rows = _rows(output, channels)
        mean = rows.mean(dim=1, keepdim=True)
        # Two passes, not var_mean: the same numbers, and 28 × faster on CPU in this memory layout.
        variance = (rows - mean).square().mean(dim=1)
        if torch.is_grad_enabled():  # the square root has no finite gradient at 0
            variance = variance.clamp_min(TINY)
        return mean[:, 0].float(), variance.sqrt().float()

    @cached_property
    def forward_macs(self) -> int:  # type: ignore[override]
        return sum(self.layer_macs())

    def layer_macs(self, size: int | None = None) -> list[int]:
        """Return the multiply–accumulates of each layer for one image of this size, in the order of `places`."""
        layers = {place.path: self.twin.model.get_submodule(place.path) for place in self.places}
        with torch.inference_mode(), counting(layers) as counted:
            self._raw(self.noise(size), self.base)
        return list(counted.values())


def usable_device(name: str | None) -> torch.device:
    """Return the named device, or the best available; raise `DeviceError` if it cannot be used."""
    try:
        device = torch.device(name or best_torch_device())
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = shorten(str(error), 120, placeholder=" …")
        usable = " or ".join(dict.fromkeys(("cpu", best_torch_device())))
        raise DeviceError(f"the device {name!r} cannot be used ({reason}); expected {usable}") from error
    return device


def best_torch_device() -> str:
    """Return the best available device: cuda, mps or cpu."""
    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _rows(output: torch.Tensor, channels: int) -> torch.Tensor:
    """Return NCHW, NHWC or token outputs as (n, places, channels)."""
    if output.ndim == 4 and output.shape[1] == channels:
        return output.permute(0, 2, 3, 1).flatten(1, 2)
    if output.shape[-1] == channels:
        return output.flatten(1, -2)
    raise BackboneError(f"tap output has shape {tuple(output.shape)}; expected {channels} channels second or last")


def completed(spec: NetworkSpec, model: Any) -> NetworkSpec:
    """Return the spec with missing fields taken from timm's configuration of the network."""
    config = model.pretrained_cfg
    return NetworkSpec(
        name=spec.name,
        timm_name=spec.timm_name,
        size=spec.size or int(config["input_size"][-1]),
        mean=spec.mean or tuple(config["mean"]),
        std=spec.std or tuple(config["std"]),
        taps=spec.taps if spec.taps is not None else _default_taps(model),
        fold=spec.fold,
    )


def _default_taps(model: Any) -> tuple[str, ...]:
    """Return the stages that timm lists, as many as fit in `MAX_WIDTH`, evenly over the depth.

    A last stage as wide as the features is left out: its mean equals the features.
    """
    known = {name for name, _ in model.named_modules()}
    stages = [(s["module"], int(s["num_chs"])) for s in getattr(model, "feature_info", []) if s["module"] in known]
    features = getattr(model, "head_hidden_size", None) or model.num_features
    if stages and stages[-1][1] == features:
        stages.pop()
    for step in range(1, len(stages) + 1):
        chosen = stages[::step]
        if features + 2 * sum(n for _, n in chosen) <= MAX_WIDTH:
            return tuple(path for path, _ in chosen)
    return ()


def _probe_widths(model: Any, taps: dict[str, nn.Module], size: int, name: str) -> tuple[int, dict[str, int]]:
    """Run once; return the number of features, and of channels per tap. Raise if it cannot be a backbone."""
    stages = {s["module"]: int(s["num_chs"]) for s in getattr(model, "feature_info", [])}
    channels: dict[str, int] = {}

    def reading(path: str) -> Any:
        def read(_module: nn.Module, _inputs: Any, output: torch.Tensor) -> None:
            channels[path] = stages.get(path, output.shape[1] if output.ndim == 4 else output.shape[-1])

        return read

    hooks = [module.register_forward_hook(reading(path)) for path, module in taps.items()]
    with torch.inference_mode(), marking_uncalled(model):
        features = model(torch.zeros(1, 3, size, size))
    for hook in hooks:
        hook.remove()
    if features.ndim != 2 or set(channels) != set(taps):
        raise BackboneError(
            f"{name!r} cannot be a backbone: its output for one image has shape {tuple(features.shape)}, "
            f"expected (1, features) and an output of each of {', '.join(taps)}"
        )
    return features.shape[1], channels


def state_of(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return a network's weights as arrays, by name."""
    return {name: tensor.detach().cpu().numpy() for name, tensor in model.state_dict().items()}

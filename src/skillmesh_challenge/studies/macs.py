"""MACs of one forward pass of lite0 and of Xception, counted in four ways, beside published counts.

The four ways count products alone, or also norms (2 per number), activations and pools (1 per number).
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from skillmesh_challenge.studies.study import Findings, StudySettings

if TYPE_CHECKING:
    from torch import nn

    from skillmesh.backbone.torch_network import TorchNetwork

PUBLISHED = {
    "lite0": {"with norms": ("timm's benchmark table", 0.40e9), "with all": ("its authors' README", 407e6)},
    "xception": {"with norms": ("fvcore", 8.400e9), "with all": ("ptflops' README", 8.42e9)},
}
"""Published MACs by the way of counting used, or the closest one: the authors of lite0 do not state theirs."""
WAYS = {
    "ours": "products of convolutions, no classifier (skillmesh)",
    "with classifier": "products, with the classifier (torch.utils.flop_counter / 2)",
    "with norms": "the same and batch norms, 2 per value (like fvcore)",
    "with all": "the same and activations and pools, 1 per value (like ptflops)",
}


def macs(settings: StudySettings) -> Findings:
    rows = []
    for name, published in PUBLISHED.items():
        counted = counts(random_network(name))
        for way, label in WAYS.items():
            source, figure = published.get(way, ("", None))
            rows.append(
                {
                    "network": name,
                    "what is counted": label,
                    "GMACs": counted[way] / 1e9,
                    "published, GMACs": "–" if figure is None else figure / 1e9,
                    "published by": source or "–",
                    "difference, %": "–" if figure is None else 100 * (counted[way] / figure - 1),
                    "difference of skillmesh's own count, %": "–"
                    if figure is None
                    else 100 * (counted["ours"] / figure - 1),
                }
            )
    return Findings("MACs of one forward pass", rows, ["Weights are random: counts do not depend on them."])


def random_network(name: str) -> TorchNetwork:
    """Return a backbone with random weights."""
    import torch

    from skillmesh.backbone.building import import_timm
    from skillmesh.backbone.spec import spec_of
    from skillmesh.backbone.torch_network import TorchNetwork

    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "random.pth"
        torch.save(import_timm().create_model(spec_of(name).timm_name).state_dict(), weights)
        return TorchNetwork(name, weights, device="cpu")


def counts(network: TorchNetwork) -> dict[str, int]:
    """Return the MACs of one image for every way of counting; the first uses skillmesh's own counter."""
    from skillmesh.backbone.suffix import pass_costs

    numbers = _numbers(network.spec.timm_name, network.size)
    products = numbers["products"]
    norms = 2 * numbers["norms"]
    return {
        "ours": pass_costs(network).forward,
        "with classifier": products,
        "with norms": products + norms,
        "with all": products + norms + numbers["activations"] + numbers["pools"],
    }


def _numbers(timm_name: str, size: int) -> Counter[str]:
    """Return the number of products and of values in norms, activations and pools in one pass of the network."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from skillmesh.backbone.building import import_timm

    numbers: Counter[str] = Counter()

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        numbers.update(_layer_numbers(layer, inputs[0].numel(), output.numel()))

    with torch.device("meta"):
        model = import_timm().create_model(timm_name).eval()
        for layer in model.modules():
            layer.register_forward_hook(count)
        with FlopCounterMode(display=False) as products:
            model(torch.zeros(1, 3, size, size))
    numbers["products"] = products.get_total_flops() // 2
    return numbers


def _layer_numbers(layer: nn.Module, inputs: int, outputs: int) -> dict[str, int]:
    from torch import nn

    if isinstance(layer, nn.BatchNorm2d):  # the activation inside timm's norms is a separate layer
        return {"norms": outputs}
    if isinstance(layer, nn.ReLU | nn.ReLU6):
        return {"activations": outputs}
    if isinstance(layer, nn.MaxPool2d | nn.AdaptiveAvgPool2d):
        return {"pools": inputs}
    return {}

"""One pass of lite0 and of Xception, counted in four ways, beside the counts that others published.

They differ in what they count: products alone, or norms (2 per number), activations and pools (1 per number) too.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from skillmesh_challenge.studies.study import Findings, StudySettings

if TYPE_CHECKING:
    from torch import nn

    from skillmesh.backbone.network import Network

PUBLISHED = {
    "lite0": {"with norms": ("timm's benchmark table", 0.40e9), "with all": ("its authors' README", 407e6)},
    "xception": {"with norms": ("fvcore", 8.400e9), "with all": ("ptflops' README", 8.42e9)},
}
"""By the way of counting that each comes from, or comes closest to: the authors of lite0 do not say theirs."""
WAYS = {
    "ours": "products of convolutions, no classifier (skillmesh)",
    "with classifier": "products, with the classifier (torch.utils.flop_counter / 2)",
    "with norms": "and norms, 2 per number (as fvcore)",
    "with all": "and activations and pools (as ptflops)",
}


def macs(settings: StudySettings) -> Findings:
    rows = []
    for name, published in PUBLISHED.items():
        found = counts(random_network(name))
        for way, label in WAYS.items():
            source, figure = published.get(way, ("", None))
            rows.append(
                {
                    "network": name,
                    "counted": label,
                    "GMACs": found[way] / 1e9,
                    "published, GMACs": "–" if figure is None else figure / 1e9,
                    "by": source or "–",
                    "difference, %": "–" if figure is None else 100 * (found[way] / figure - 1),
                    "of skillmesh's own, %": "–" if figure is None else 100 * (found["ours"] / figure - 1),
                }
            )
    return Findings("One image's pass", rows, ["Weights are random: counts do not depend on them."])


def random_network(name: str) -> Network:
    """A backbone without its trained weights."""
    import torch

    from skillmesh.backbone.building import import_timm, spec_of
    from skillmesh.backbone.network import Network

    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "random.pth"
        torch.save(import_timm().create_model(spec_of(name).timm_name).state_dict(), weights)
        return Network(name, weights, device="cpu")


def counts(network: Network) -> dict[str, int]:
    """MACs of one image by every way of counting; the first by skillmesh's own counter."""
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
    """Read off one pass of the whole network how much is multiplied, and what goes through the other layers."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from skillmesh.backbone.building import import_timm

    found: Counter[str] = Counter()

    def count(layer: nn.Module, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        found.update(_of_layer(layer, inputs[0].numel(), output.numel()))

    with torch.device("meta"):
        model = import_timm().create_model(timm_name).eval()
        for layer in model.modules():
            layer.register_forward_hook(count)
        with FlopCounterMode(display=False) as products:
            model(torch.zeros(1, 3, size, size))
    found["products"] = products.get_total_flops() // 2
    return found


def _of_layer(layer: nn.Module, taken: int, given: int) -> dict[str, int]:
    from torch import nn

    if isinstance(layer, nn.BatchNorm2d):  # timm's hold their activation as a layer of its own
        return {"norms": given}
    if isinstance(layer, nn.ReLU | nn.ReLU6):
        return {"activations": given}
    if isinstance(layer, nn.MaxPool2d | nn.AdaptiveAvgPool2d):
        return {"pools": taken}
    return {}

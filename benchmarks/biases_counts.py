"""Count what biases cost on a network, from its structure alone: channels, bytes, and MACs of a pass.

    python benchmarks/biases_counts.py

The weights are random, since the counts do not depend on them.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skillmesh.backbone.building import import_timm
from skillmesh.backbone.spec import chosen, spec_of
from skillmesh.backbone.suffix import pass_costs
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.evaluation.provenance import provenance
from skillmesh.learning.adaptation import Biases
from skillmesh.learning.biases import OURS, PAPER
from skillmesh.learning.training import TrainingSettings

HERE = Path(__file__).parent


def counted(name: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "random.pth"
        torch.save(import_timm().create_model(spec_of(name).timm_name).state_dict(), weights)
        network = TorchNetwork(name, weights, device="cpu")
    costs = pass_costs(network)
    half = network.places.index(chosen("last-half", network.places)[0])
    stored = Biases(np.random.default_rng(0).standard_normal(network.bias_count).astype(np.float32)).tensors()

    def training(settings: TrainingSettings, first: int) -> int:
        """Return the MACs per training image, without validation, if no part of the network is skipped."""
        return settings.epochs * (costs.forward + costs.backward(first))

    return {
        "parameters": network.parameters,
        "layers": len(network.places),
        "channels": network.bias_count,
        "bytes_at_most": sum(tensor.nbytes for tensor in stored.values()),
        "forward_macs": costs.forward,
        "backward_macs_all": costs.backward(0),
        "backward_macs_last_half": costs.backward(half),
        "paper_macs_per_image": training(PAPER, 0),
        "our_macs_per_image": training(OURS, 0),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "biases-counts.json")
    options = parser.parse_args()
    origin = provenance("python benchmarks/biases_counts.py", [], 0)
    report = {name: counted(name) for name in ("lite0", "xception")} | {"provenance": origin}
    print(json.dumps(report, indent=1))
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()

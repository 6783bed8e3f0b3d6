"""Measure training memory: biases against full fine-tuning of the same network, at the same batch size.

    python benchmarks/biases_memory.py

Each runs in its own process. The figure is the peak during two steps, minus the process's memory before the first.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
from pathlib import Path

import torch
from torch import nn

from skillmesh.backbone.building import build
from skillmesh.backbone.suffix import Start, Suffix
from skillmesh.backbone.torch_network import TorchNetwork
from skillmesh.evaluation.provenance import provenance

HERE = Path(__file__).parent
WAYS = ("full fine-tuning", "biases, all layers", "biases, last half")
STEPS = 2


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def train(way: str, batch: int) -> float:
    """Do two training steps and return the increase of the peak memory."""
    torch.set_num_threads(1)
    network = TorchNetwork("lite0", device="cpu")
    images = torch.randint(256, (batch, network.size, network.size, 3), dtype=torch.uint8)
    labels = torch.zeros(batch, dtype=torch.long)
    head = nn.Linear(network.features, 10)
    if way == "full fine-tuning":
        model = build(network.spec, None).train().requires_grad_(True)
        trained = [*model.parameters(), *head.parameters()]

        def features() -> torch.Tensor:
            output: torch.Tensor = model(network.normalised(images))
            return output

    else:
        places = network.places if way == "biases, all layers" else network.places[len(network.places) // 2 :]
        suffix = Suffix(network, places)
        added = nn.Parameter(torch.zeros_like(network.base))
        parts = [suffix.begin(images[i : i + 1]) for i in range(batch)]
        start = Start(*map(torch.cat, zip(*parts, strict=True)))
        trained = [added, *head.parameters()]

        def features() -> torch.Tensor:
            return suffix.raw(start, network.base + added)[:, : network.features]

    optimiser = torch.optim.Adam(trained)
    before = peak_mb()
    for _ in range(STEPS):
        optimiser.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(head(features()), labels).backward()
        optimiser.step()
    return peak_mb() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--way", choices=WAYS, help="measure only this method, in this process")
    parser.add_argument("--out", type=Path, default=HERE.parent / "docs" / "results" / "biases-memory.json")
    options = parser.parse_args()
    if options.way:
        print(json.dumps(train(options.way, options.batch)))
        return
    origin = provenance("python benchmarks/biases_memory.py", [], 0)
    rows = {}
    for way in WAYS:
        command = [sys.executable, __file__, "--way", way, "--batch", str(options.batch)]
        rows[way] = round(json.loads(subprocess.run(command, capture_output=True, check=True).stdout), 1)
        print(f"{way:24} {rows[way]:8.1f} MB  {rows[way] / rows[WAYS[0]]:.2f} ×", flush=True)
    options.out.write_text(json.dumps({"batch": options.batch, "mb": rows, "provenance": origin}, indent=1) + "\n")


if __name__ == "__main__":
    main()

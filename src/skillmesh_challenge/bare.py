"""Lower limit of the time that an answer takes: the same network with nothing around it."""

from __future__ import annotations

from collections.abc import Sequence

from skillmesh.backbone.network import Network, cpu_workers
from skillmesh.data.images import Pixels


class BareNetwork:
    """The network without taps and decoding, on ready pixels: taps are only on copies of the network."""

    def __init__(self, network: Network | None = None) -> None:
        self.network = network or Network(device="cpu")

    def run(self, pixels: Sequence[Pixels]) -> None:
        from concurrent.futures import ThreadPoolExecutor

        if len(pixels) == 1:
            self.one(pixels[0])
            return
        with ThreadPoolExecutor(cpu_workers()) as pool:
            list(pool.map(self.one, pixels))

    def one(self, pixels: Pixels) -> None:
        import torch

        torch.set_num_threads(1)
        with torch.inference_mode():
            self.network.model(self.network.normalised(torch.tensor(pixels[None])))

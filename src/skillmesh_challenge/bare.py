"""Lower limit of the time that an answer takes: the same network with nothing around it."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from skillmesh.backbone.network import Network, cpu_workers, load_network
from skillmesh.data.images import Pixels


class BareNetwork:
    """The forward pass alone, on pixels that are ready."""

    def __init__(self, network: Network | None = None) -> None:
        self.network = network or load_network(device="cpu")

    def run(self, pixels: Sequence[Pixels]) -> None:
        if len(pixels) == 1:
            self.one(pixels[0])
            return
        with ThreadPoolExecutor(cpu_workers()) as pool:
            list(pool.map(self.one, pixels))

    def one(self, pixels: Pixels) -> None:
        self.network.forward(pixels[None])

"""Make the graph and card of lite0 that the package ships; needs the extra `torch`."""

from pathlib import Path

from skillmesh.backbone.exporting import export_network
from skillmesh.backbone.spec import WEIGHTS
from skillmesh.backbone.torch_network import TorchNetwork

FOLDER = Path(__file__).parent.parent / "src" / "skillmesh" / "backbone" / "networks" / "lite0"

if __name__ == "__main__":
    export_network(TorchNetwork("lite0", device="cpu"), FOLDER)
    (FOLDER / WEIGHTS).unlink()  # they come from their own package

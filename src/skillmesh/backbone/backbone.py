"""The backbone: network, weights and calibration as one thing with one fingerprint."""

from __future__ import annotations

import hashlib
import logging
import sqlite3
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from skillmesh.backbone.calibration import Calibration
from skillmesh.backbone.representation import Raw, represent
from skillmesh.common.choices import Representation
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import CalibrationError
from skillmesh.numerics.tensors import Floats

if TYPE_CHECKING:
    from skillmesh.backbone.cache import DescriptorCache
    from skillmesh.backbone.describe import Described
    from skillmesh.backbone.network import Network
    from skillmesh.common.progress import Advance

log = logging.getLogger(__name__)


class Backbone:
    """What all agents of a mesh share: equal fingerprints mean comparable descriptors.

    Examples
    --------
    >>> agent.backbone.name
    'lite0'
    >>> Agent("another", backbone=agent.backbone).tasks()  # agents of one process may share one
    []
    """

    def __init__(self, network: Network, calibration: Calibration, cache: DescriptorCache | None = None) -> None:
        if calibration.network != network.fingerprint:
            raise CalibrationError(
                f"the calibration was made for a network {calibration.network[:12]}…, this one is "
                f"{network.fingerprint[:12]}… ({network.spec.name}); make one for it with `skillmesh calibrate`"
            )
        self.network = network
        self.calibration = calibration
        self.cache = cache

    @classmethod
    def load(
        cls,
        name: str = "lite0",
        weights: Path | None = None,
        calibration: Path | None = None,
        device: str | None = None,
        cache_folder: Path | None = None,
    ) -> Backbone:
        """Build the network and find its calibration: the file given, or the one shipped for `name`."""
        from skillmesh.backbone.cache import DescriptorCache
        from skillmesh.backbone.network import Network

        measured = load_calibration(name, calibration)
        network = Network(name, weights, device)
        cache = None
        if cache_folder is not None:
            try:
                cache = DescriptorCache(cache_folder, network.fingerprint, width=network.width)
            except (OSError, sqlite3.Error) as error:  # no room, no permission: slower, but no reason to stop
                log.warning("descriptors are not cached: %s: %s", cache_folder, error)
        return cls(network, measured, cache)

    @property
    def name(self) -> str:
        return self.network.spec.name

    @property
    def fingerprint(self) -> str:
        return backbone_fingerprint(self.calibration)

    def describe(self, images: Sequence[AnyImage], progress: Advance | None = None) -> Described:
        """Raw descriptors of images; unreadable ones are listed, not raised."""
        from skillmesh.backbone.describe import describe

        return describe(self.network, images, self.cache, progress)

    def biased(
        self, images: Sequence[AnyImage], added: Floats, representation: Representation, compact: bool = False
    ) -> Floats:
        """Represent images that can be read as the network shows them with a task's biases added to its own."""
        from skillmesh.backbone.describe import describe

        raw = describe(self.network, images, biases=self.network.biases(added)).raw
        return np.nan_to_num(
            self.represent(raw, representation, compact)
        )  # absurd biases harm their own task only

    def changed(self, images: Sequence[AnyImage], representation: Representation, compact: bool = False) -> Floats:
        """Represent images that a task has changed; nothing of them is cached."""
        from skillmesh.backbone.describe import describe

        return self.represent(describe(self.network, images).raw, representation, compact)

    def toes(self, images: Sequence[AnyImage], added: Floats) -> Floats:
        """The view of a Head2Toe head, with biases added to the network's own."""
        from skillmesh.backbone.describe import describe_toes

        return np.nan_to_num(describe_toes(self.network, images, added))

    def represent(self, raw: Raw, representation: Representation, compact: bool = False) -> Floats:
        return represent(raw, self.calibration.features, representation, self.calibration, compact)


def load_calibration(name: str, path: Path | None = None) -> Calibration:
    """Read the calibration at `path`, or the one that the package ships for a backbone's name."""
    if path is not None:
        return Calibration.load(path)
    shipped = files("skillmesh.backbone") / "calibrations" / f"{name}.safetensors"
    if not shipped.is_file():
        raise CalibrationError(
            f"no calibration is shipped for {name!r}; make one with `skillmesh calibrate FOLDER_OF_TASKS "
            f"--backbone {name} --out FILE`, share it with all agents, and name it with --calibration FILE"
        )
    with as_file(shipped) as file:
        return Calibration.load(file)


def backbone_fingerprint(calibration: Calibration) -> str:
    """Hash network, weights and calibration. The calibration names its network, so it is enough."""
    return hashlib.sha256(f"skillmesh/backbone/1\n{calibration.fingerprint}".encode()).hexdigest()

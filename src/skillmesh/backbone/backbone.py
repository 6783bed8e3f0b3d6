"""The backbone: network, weights and calibration under one fingerprint; and its cache of descriptors on disk."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Sequence
from importlib.resources import as_file, files
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
import platformdirs

from skillmesh.backbone.calibration import Calibration, Raw, represent
from skillmesh.backbone.spec import CALIBRATION, calibration_in, resolve
from skillmesh.common.choices import Representation
from skillmesh.common.files import make_folder
from skillmesh.data.images import UnreadableImageError
from skillmesh.data.inputs import AnyImage
from skillmesh.errors import BackboneError, CalibrationError
from skillmesh.numerics.arrays import Floats

if TYPE_CHECKING:
    from skillmesh.backbone.network import Described, Network
    from skillmesh.backbone.torch_network import TorchNetwork
    from skillmesh.numerics.process import Advance

# Cache of raw descriptors on disk, by the hash of the image's content.
#
# There is one SQLite file per network and engine. A damaged file is moved aside and replaced by an empty one. If
# the file grows over its limit, the oldest half is deleted.

log = logging.getLogger(__name__)

LIMIT_BYTES = 4 * 10**9
LOOK_AFTER = 10_000
"""Number of added descriptors after which the size is checked again; some 30 MB."""
DAMAGE = (sqlite3.DatabaseError, UnicodeDecodeError)
"""Errors that a damaged file raises; the second if SQLite's message quotes the file and is not valid UTF-8."""


def default_folder() -> Path:
    """Return the folder in `SKILLMESH_CACHE`, or else the system's folder for caches."""
    return Path(os.environ.get("SKILLMESH_CACHE") or platformdirs.user_cache_dir("skillmesh"))


def content_key(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


class DescriptorCache:
    """Raw descriptors by content key. Threads and processes may share one."""

    def __init__(
        self,
        folder: Path,
        network_fingerprint: str,
        limit_bytes: int = LIMIT_BYTES,
        width: int | None = None,
        engine: str = "onnx",
    ) -> None:
        """Open or create the cache; `width` is the number of values of a descriptor, if it is known.

        Engines round differently, so each has a cache of its own.
        """
        make_folder(folder)
        ending = "" if engine == "torch" else f"-{engine}"  # PyTorch's has the name of when it was the only engine
        self.path = folder / f"descriptors-{network_fingerprint[:16]}{ending}.sqlite"
        self._lock = Lock()
        self._bytes = None if width is None else np.dtype(np.float16).itemsize * width
        try:
            self._connection = self._open()
        except sqlite3.OperationalError:  # locked, disk full, no permission: not damaged
            raise
        except DAMAGE as error:
            self._replace_damaged(error)
        self._limit, self._added = limit_bytes, 0
        with self._lock:
            self._keep_under_limit(shrink=True)

    def get(self, key: bytes) -> Raw | None:
        with self._lock:
            try:
                row = self._connection.execute("SELECT value FROM raw WHERE key = ?", (key,)).fetchone()
            except DAMAGE as error:
                self._give_up(error)
                return None
        value = row[0] if row is not None else None
        if not isinstance(value, bytes) or len(value) % 2 or len(value) != (self._bytes or len(value)):
            return None  # there is no entry, or it is damaged in a way that SQLite does not detect
        return np.frombuffer(value, dtype=np.float16)

    def put(self, items: list[tuple[bytes, Raw]]) -> None:
        rows = [(key, value.tobytes()) for key, value in items]
        with self._lock:
            try:
                with self._connection:
                    self._connection.executemany("INSERT OR IGNORE INTO raw (key, value) VALUES (?, ?)", rows)
            except DAMAGE as error:
                self._give_up(error)
            self._added += len(rows)
            if self._added >= LOOK_AFTER:  # a node may keep the cache open for months
                self._keep_under_limit()

    def close(self) -> None:
        self._connection.close()

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, timeout=60, check_same_thread=False)
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")  # a lost commit costs only a forward pass
        connection.execute("CREATE TABLE IF NOT EXISTS raw (id INTEGER PRIMARY KEY, key BLOB UNIQUE, value BLOB)")
        connection.commit()
        return connection

    def _give_up(self, error: Exception) -> None:
        """Continue without this entry: errors of a cache must not stop the work."""
        if isinstance(error, sqlite3.OperationalError):  # locked, or the disk is full
            log.warning("the descriptor cache %s cannot be used now: %s; continuing without it", self.path, error)
        else:
            self._connection.close()
            self._replace_damaged(error)

    def _replace_damaged(self, error: Exception) -> None:
        log.warning("the descriptor cache %s is damaged (%s); replacing it by an empty one", self.path, error)
        self.path.replace(self.path.with_suffix(".damaged"))
        for ending in ("-wal", "-shm"):  # they belong to the damaged file
            self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
        self._connection = self._open()

    def _keep_under_limit(self, shrink: bool = False) -> None:
        """Delete the oldest half if the cache is over its limit; the file keeps the free space, or `shrink`s."""
        self._added = 0
        pages = "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, pragma_freelist_count, "
        try:
            if self._connection.execute(f"{pages} pragma_page_size").fetchone()[0] <= self._limit:
                return
            with self._connection:
                self._connection.execute("DELETE FROM raw WHERE id <= (SELECT (MIN(id) + MAX(id)) / 2 FROM raw)")
            if shrink:
                self._connection.execute("VACUUM")
                self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        except DAMAGE as error:
            self._give_up(error)


class Backbone:
    """The frozen network that all agents of a mesh share: equal fingerprints mean comparable descriptors.

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
                f"the calibration was made for network {calibration.network[:12]}…, expected this network, "
                f"{network.fingerprint[:12]}… ({network.spec.name}); make one for it with `skillmesh calibrate`"
            )
        if (calibration.features, len(calibration.mean)) != (network.features, network.width):
            raise CalibrationError(
                f"the calibration has {len(calibration.mean)} values, {calibration.features} of them features, "
                f"expected {network.width} and {network.features} for {network.spec.name}; make one for it with "
                "`skillmesh calibrate`"
            )
        self.network = network
        self.calibration = calibration
        self.cache = cache
        self._torch: TorchNetwork | None = None

    @classmethod
    def load(
        cls,
        name: str = "lite0",
        weights: Path | None = None,
        calibration: Path | Calibration | None = None,
        device: str | None = None,
        cache_folder: Path | None = None,
    ) -> Backbone:
        """Build a named network, or one in an exported folder, with the calibration given or shipped with it."""
        name, weights = resolve(name, weights)
        return cls.from_settings(name, weights, calibration, device, cache_folder)

    @classmethod
    def from_settings(
        cls,
        name: str,
        weights: Path | None = None,
        calibration: Path | Calibration | None = None,
        device: str | None = None,
        cache_folder: Path | None = None,
    ) -> Backbone:
        """Build a network as `load` does, from saved settings, whose name is never taken for a folder."""
        from skillmesh.backbone.network import load_network

        measured = load_calibration(name, calibration, weights)
        network = load_network(name, weights, device)
        cache = None
        if cache_folder is not None:
            try:
                kind = network.cached_as or network.engine
                cache = DescriptorCache(cache_folder, network.fingerprint, width=network.width, engine=kind)
            except (OSError, sqlite3.Error) as error:  # disk full, no permission: slower, but no reason to stop
                log.warning("descriptors are not cached: cannot use folder %s: %s", cache_folder, error)
        return cls(network, measured, cache)

    @property
    def torch_network(self) -> TorchNetwork:
        """The same network on PyTorch, for training; raise `BackboneError` without the extra `torch`."""
        from skillmesh.backbone.network import require_torch, torch_networks

        if self._torch is None:
            require_torch("training an adaptation")
            known = self.network if isinstance(self.network, torch_networks().TorchNetwork) else None
            self._torch = known or self._loaded_on_torch()
        return self._torch

    def _loaded_on_torch(self) -> TorchNetwork:
        from skillmesh.backbone.network import Origin, load_torch_network

        origin = self.network.origin or Origin(self.name)
        loaded = load_torch_network(origin.name, origin.weights, origin.device)
        if loaded.fingerprint != self.network.fingerprint:
            raise BackboneError(
                f"PyTorch loads other weights for {self.name!r} than this backbone runs with (fingerprint "
                f"{loaded.fingerprint[:12]}…, expected {self.network.fingerprint[:12]}…); if they have changed, "
                "start this program again"
            )
        return loaded

    @property
    def name(self) -> str:
        return self.network.spec.name

    @property
    def fingerprint(self) -> str:
        return backbone_fingerprint(self.calibration)

    def describe(
        self, images: Sequence[AnyImage], progress: Advance | None = None, thumbnails: bool = False
    ) -> Described:
        """Return raw descriptors of images; unreadable images are listed in the result, not raised."""
        from skillmesh.backbone.network import describe

        return describe(self.network, images, self.cache, progress, thumbnails=thumbnails)

    def biased(
        self, images: Sequence[AnyImage], added: Floats, representation: Representation, compact: bool = False
    ) -> Floats:
        """Return representations of readable images from the network with a task's biases added to its own."""
        raw = self._all_raw(images, added)
        return np.nan_to_num(
            self.represent(raw, representation, compact)
        )  # absurd biases harm their own task only

    def changed(self, images: Sequence[AnyImage], representation: Representation, compact: bool = False) -> Floats:
        """Return representations of images that a task's pattern has changed; these are never cached."""
        return self.represent(self._all_raw(images), representation, compact)

    def _all_raw(self, images: Sequence[AnyImage], added: Floats | None = None) -> Raw:
        """Return a raw descriptor of each image; raise `UnreadableImageError` if one can no longer be read."""
        from skillmesh.backbone.network import describe

        described = describe(self.network, images, added=added)
        if described.unreadable:
            raise UnreadableImageError(described.unreadable[0].reason)
        return described.raw

    def toes(self, images: Sequence[AnyImage], added: Floats) -> Floats:
        """Return the inputs of a Head2Toe head, from the network with biases added to its own."""
        from skillmesh.backbone.network import describe_toes

        return np.nan_to_num(describe_toes(self.network, images, added))

    def represent(self, raw: Raw, representation: Representation, compact: bool = False) -> Floats:
        return represent(raw, self.calibration.features, representation, self.calibration, compact)


def load_calibration(
    name: str, given: Path | Calibration | None = None, weights: Path | None = None
) -> Calibration:
    """Return the calibration given, as it is or as a file, or else the one that is shipped with this backbone.

    That is the one in the folder of an exported network, if `weights` is one, or else the package's for this name.
    """
    given = given or calibration_in(weights)
    if given is not None:
        return given if isinstance(given, Calibration) else Calibration.load(given)
    if weights is not None and weights.is_dir():
        raise CalibrationError(
            f"the exported network in {weights} has no {CALIBRATION}; make one with `skillmesh calibrate "
            f"FOLDER_OF_TASKS --backbone {weights} --out {weights / CALIBRATION}`"
        )
    for entry in (files("skillmesh.backbone") / "calibrations").iterdir():
        if entry.name == f"{name}.safetensors":  # a name that is a path must not lead elsewhere
            with as_file(entry) as file:
                return Calibration.load(file)
    raise CalibrationError(
        f"no calibration is shipped for {name!r}; make one with `skillmesh calibrate FOLDER_OF_TASKS "
        f"--backbone {name} --out FILE`, share it with all agents, and give it to "
        "`skillmesh init --calibration FILE`"
    )


def backbone_fingerprint(calibration: Calibration) -> str:
    """Return the hash of network, weights and calibration; the calibration's hash covers the network's."""
    return hashlib.sha256(f"skillmesh/backbone/1\n{calibration.fingerprint}".encode()).hexdigest()

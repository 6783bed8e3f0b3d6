"""An agent's home: a folder with its settings, its key, its bank and its own validation images."""

from __future__ import annotations

import getpass
import logging
import os
import re
import socket
import stat
import unicodedata
from collections.abc import Container, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from skillmesh.backbone.backbone import load_calibration
from skillmesh.backbone.spec import CALIBRATION as EXPORTED_CALIBRATION
from skillmesh.backbone.spec import resolve
from skillmesh.common import files
from skillmesh.common.config import FILE as CONFIG_FILE
from skillmesh.common.config import AgentConfig
from skillmesh.common.files import PRIVATE, make_folder, remove_abandoned, too_long, write_whole
from skillmesh.errors import AgentError
from skillmesh.learning.head import read_probes
from skillmesh.module import Identity, Module
from skillmesh.module.teachers import fits, refuse_unfit
from skillmesh.numerics.arrays import Floats, Tensors, dequantise_rows, quantise_rows
from skillmesh.store.ledger import FILE as LEDGER_FILE
from skillmesh.store.ledger import new_beside

log = logging.getLogger(__name__)

KEY_FILE = "key.pem"
CALIBRATION_FILE = "calibration.safetensors"
FOLDERS = ("bank", "validation", "quarantine", "partial", "tls")
"""Names of the folders in a home."""
_OWN = re.compile(
    rf"{CONFIG_FILE}|mesh\.json|{KEY_FILE}|{CALIBRATION_FILE}|ledger\..*|node\.(lock|socket)|serve\.log"
    rf"|training-.*|\.skillmesh-.*|{'|'.join(FOLDERS)}"
)
"""Pattern of the names of all files and folders that an agent keeps in its home."""
OTHERS = 0o077
"""Permission bits of all users except the owner."""


def home_folder(home: str | Path | None = None) -> Path:
    """Return `home`, or else the folder that `SKILLMESH_HOME` names, or else the user's data folder."""
    folder = Path(home or os.environ.get("SKILLMESH_HOME") or _usual_home())
    if too_long(folder):
        raise AgentError(
            f"{str(folder)[:80]}… is too long for a home; expected parts of at most 255 bytes each; choose another"
        )
    return folder


def _usual_home() -> Path:
    return Path(platformdirs.user_data_dir("skillmesh"))


def create_home(home: Path, **settings: Any) -> None:
    """Create an agent's home: settings, a new key, an empty bank.

    A calibration file is copied into the home, because the agent's modules cannot be used without it.
    """
    if (home / CONFIG_FILE).exists():
        raise AgentError(f"there is an agent at {home} already; use it as it is, or name another home")
    settings.setdefault("name", default_name(home))
    refuse_unfit(str(settings["name"]))
    name, weights = resolve(str(settings.get("backbone", "lite0")), settings.get("weights"))
    calibration = settings.get("calibration")
    if weights is not None and weights.is_dir():  # an exported network
        settings |= {"backbone": name, "weights": weights.resolve()}
        calibration = calibration or (file if (file := weights / EXPORTED_CALIBRATION).exists() else None)
    load_calibration(name, calibration)
    if calibration is not None:
        settings["calibration"] = CALIBRATION_FILE
    config = AgentConfig.of(settings)
    try:
        make_folder(home)
        if calibration is not None:
            _copy_calibration(Path(calibration), home)
    except OSError as error:
        raise AgentError(f"cannot create an agent at {home}: {error.strerror}; name another home") from error
    if not (home / KEY_FILE).exists():
        Identity.create(config.name).save(home / KEY_FILE)
    config.save(home)
    close_to_others(home)


def is_used(home: Path) -> bool:
    """Return whether a home holds a ledger, also one of an unfinished repair, or modules.

    A key alone is what a killed process leaves that was creating the home: then there is nothing to lose yet.
    """
    ledger = home / LEDGER_FILE
    return ledger.exists() or new_beside(ledger) is not None or any((home / "bank").glob("*.skill"))


def _copy_calibration(source: Path, home: Path) -> None:
    """Copy a calibration file into a home. Never replace another one that modules in the home may depend on."""
    target, data = home / CALIBRATION_FILE, source.read_bytes()
    if is_used(home) and target.exists() and target.read_bytes() != data:
        raise AgentError(
            f"{source} differs from {target}; expected the same content, because an agent's modules work only "
            "with the calibration that they were learned with; use the latter, or move it away first if it is not "
            "the agent's"
        )
    write_whole(target, data, mode=PRIVATE)


def put_in_order(home: Path) -> None:
    """Clean up a home and close it to other users. A home without write permission is left as it is.

    Half-written files of killed processes are removed. Permissions of other users are removed, because earlier
    releases left homes readable.
    """
    if not os.access(home, os.W_OK):
        return
    for folder in (home, *(home / name for name in FOLDERS if name != "bank")):  # `Bank` cleans its own folder
        remove_abandoned(folder, in_home=True)
    if close_to_others(home):
        log.warning("%s could be read by other users of this machine; it is closed to them now", home)


def close_to_others(home: Path) -> bool:
    """Remove all permissions of other users; return whether that takes any access away from them.

    If the folder also holds files that are not the agent's (the user chose a folder already in use), the folder
    keeps its permissions and only the agent's own files in it are closed.
    """
    open_before = bool(home.stat().st_mode & OTHERS)
    entries = list(home.iterdir())
    own = [path for path in entries if _OWN.fullmatch(path.name)]
    changed = [_close(path) for path in own]
    if len(own) == len(entries):
        changed.append(_close(home))
    return open_before and any(changed)


def _close(path: Path) -> bool:
    try:
        info = path.lstat()
        if stat.S_ISLNK(info.st_mode) or not info.st_mode & OTHERS or info.st_uid != os.geteuid():
            return False
        path.chmod(stat.S_IMODE(info.st_mode) & ~OTHERS)
        return True
    except OSError:  # the file was removed meanwhile, or the file system has no permissions
        return False


def default_name(home: Path) -> str:
    """Return a name that distinguishes agents: the folder's name, or for the default home the user and machine.

    The machine's name alone would be the same for every agent on it.
    """
    folder = unicodedata.normalize("NFC", home.resolve().name)
    if home != _usual_home() and fits(folder) and not folder.startswith("."):
        return folder
    host = socket.gethostname().partition(".")[0]
    try:
        user = getpass.getuser()
    except (OSError, KeyError):  # a user id without a name, as in some containers
        user = ""
    name = "-".join(part for part in (user, host) if part and part != "root")[:64]
    return name if fits(name) else "agent"


# An agent's own validation images, stored as descriptors in its home beside the bank, and never shared.
#
# Their labels are certain, so received modules are tested on them before they may answer
# (`vetting/quarantine.py`). 200 images of a task take half a megabyte, and no image has to be read again.

Labels = NDArray[np.int64]

VALIDATION = "validation"
"""Name of their folder in an agent's home."""
MAX_IMAGES = 200
"""Largest number of images kept per task; a task with fewer keeps all."""


@dataclass(frozen=True)
class OwnValidation:
    """Validation descriptors that an agent kept of one of its own tasks."""

    module: Module
    x: Floats
    labels: Labels | None
    """Indices into the card's classes; `None` if only the module's probes are left, which have no labels."""


def save_validation(folder: Path, module_id: str, x: Floats, labels: Labels) -> None:
    """Store a task's validation descriptors. A failure is only logged: the module's probes replace them later."""
    from safetensors.numpy import save as serialise

    rows = _even_rows(len(x))
    values, scale = quantise_rows(x[rows])
    tensors: Tensors = {"x": values, "x.scale": scale, "label": labels[rows].astype(np.int32)}
    try:
        make_folder(folder)
        write_whole(_path(folder, module_id), serialise(tensors), mode=PRIVATE)
    except OSError as error:
        log.warning(
            "validation descriptors are not kept in %s: %s; the task's probes are used in their place",
            folder,
            error,
        )


def load_validation(folder: Path, modules: Iterable[Module]) -> list[OwnValidation]:
    """Return the validation descriptors of these modules, or a module's probes if its file cannot be used."""
    return [_read(folder, module) for module in modules]


def remove_validation(folder: Path, module_id: str) -> None:
    """Remove the validation descriptors of one module."""
    files.remove(_path(folder, module_id))


def remove_other_validation(folder: Path, held: Container[str]) -> None:
    """Remove files of modules that are not held, left by a process killed before it stored its module."""
    for path in list(folder.glob("*.safetensors")):
        if path.stem not in held:
            files.remove(path)


def _path(folder: Path, module_id: str) -> Path:
    return folder / f"{module_id}.safetensors"


def _even_rows(count: int) -> NDArray[np.int64]:
    """Return at most `MAX_IMAGES` evenly spaced rows. Rows are sorted by class, so every class keeps its share."""
    kept = min(count, MAX_IMAGES)
    return np.arange(kept) * count // max(kept, 1)


def _read(folder: Path, module: Module) -> OwnValidation:
    from safetensors import SafetensorError
    from safetensors.numpy import load as deserialise

    try:
        tensors = deserialise(_path(folder, module.id).read_bytes())
        x, labels = dequantise_rows(tensors["x"], tensors["x.scale"]), tensors["label"].astype(np.int64)
        _check(x, labels, module)
        return OwnValidation(module, x, labels)
    except (OSError, SafetensorError, KeyError, ValueError, IndexError) as error:
        log.info("using the probes of %r in place of its validation images: %s", module.card.task, error)
        return OwnValidation(module, read_probes(module.tensors, module.card.dim), None)


def _check(x: Floats, labels: Labels, module: Module) -> None:
    classes = len(module.card.classes)
    if labels.ndim != 1:
        raise ValueError(f"found labels of shape {labels.shape}, expected one for each image")
    if x.shape != (len(labels), module.card.dim) or not np.isfinite(x).all():
        raise ValueError(f"found rows of shape {x.shape}, expected ({len(labels)}, {module.card.dim}), finite")
    if len(labels) and not (labels.min() >= 0 and labels.max() < classes):
        raise ValueError(f"found labels from {labels.min()} to {labels.max()}, expected 0 to {classes - 1}")

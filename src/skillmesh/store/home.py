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
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.resources import files as packaged
from pathlib import Path
from typing import Any

import numpy as np
import platformdirs
from numpy.typing import NDArray

from skillmesh.backbone.backbone import backbone_fingerprint, load_calibration
from skillmesh.backbone.calibration import Calibration
from skillmesh.backbone.spec import calibration_in, require_engine, resolve
from skillmesh.common import files
from skillmesh.common.config import FILE as CONFIG_FILE
from skillmesh.common.config import AgentConfig
from skillmesh.common.files import PRIVATE, make_folder, remove_abandoned, too_long, write_whole
from skillmesh.errors import AgentError, ModuleError
from skillmesh.learning.head import read_probes
from skillmesh.module import Identity, Module, read_card
from skillmesh.module.teachers import fits, refuse_unfit
from skillmesh.numerics.arrays import Floats, Tensors, dequantise_rows, quantise_rows
from skillmesh.store.ledger import FILE as LEDGER_FILE
from skillmesh.store.ledger import new_beside

log = logging.getLogger(__name__)

KEY_FILE = "key.pem"
CALIBRATION_FILE = "calibration.safetensors"
FOLDERS = ("bank", "validation", "quarantine", "partial", "tls", "unshared", "lessons")
"""Names of the folders in a home."""
LESSONS = "lessons"
"""The folder of images from which tasks are taught on the page."""
TOKENS = "page.json"
"""The file of the page's tokens."""
_OWN = re.compile(
    rf"{CONFIG_FILE}|mesh\.json|{KEY_FILE}|{CALIBRATION_FILE}|ledger\..*|node\.(lock|socket)|serve\.log|page\.json"
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
    """Create an agent's home: settings, a new key, an empty bank. The backbone may be an exported folder.

    A calibration file is copied into the home, because the agent's modules cannot be used without it.
    """
    name, weights = resolve(str(settings.get("backbone", "lite0")), settings.get("weights"))
    create_home_of(home, settings | {"backbone": name, "weights": weights})


def create_home_of(home: Path, settings: dict[str, Any]) -> None:
    """Create an agent's home as `create_home` does, from settings whose backbone was resolved."""
    if (home / CONFIG_FILE).exists():
        raise AgentError(f"there is an agent at {home} already; use it as it is, or name another home")
    refuse_half_renewed(home)
    settings = {"name": default_name(home)} | settings
    refuse_unfit(str(settings["name"]))
    name, weights = settings["backbone"], settings["weights"]
    require_engine(name, weights)
    if weights is not None and weights.is_dir():  # an exported network
        settings["weights"] = weights.resolve()
    calibration = settings.get("calibration") or calibration_in(weights)
    load_calibration(name, calibration, weights)
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


def refuse_half_renewed(home: Path) -> None:
    """Raise an error if `skillmesh renew` was stopped between its two renames: no new agent must be made here."""
    home = home.resolve()
    if home.exists():  # among others the root folder, which has no name
        return
    renewed, before = (home.with_name(f"{home.name}-{end}") for end in ("renewed", "before"))
    if (renewed / CONFIG_FILE).exists() and (before / CONFIG_FILE).exists():
        raise AgentError(
            f"there is no agent at {home}, since `skillmesh renew` was stopped while it moved folders; move "
            f"{renewed} to {home} to finish it, or {before} to undo it"
        )


EARLIER = {"lite0": ("lite0-1",)}
"""Shipped calibrations of earlier releases, by backbone."""


def keep_calibration(home: Path, config: AgentConfig) -> tuple[AgentConfig, Calibration]:
    """Return settings and calibration; one of an earlier release that the modules need becomes the home's own.

    A release may ship another calibration, which has another fingerprint: modules that were learned with the
    earlier one cannot be used with it. If nothing can be written to the home, the shipped file is used as it is.
    """
    # The settings keep its path relative, so that a home can be moved.
    usual = load_calibration(config.backbone, None if config.calibration is None else home / config.calibration)
    if config.calibration is not None or config.backbone not in EARLIER:
        return config, usual
    needed = _calibration_of_modules(home)
    if needed in (None, backbone_fingerprint(usual)):
        return config, usual
    for name in EARLIER[config.backbone]:
        if backbone_fingerprint(earlier := Calibration.load(earlier_file(name))) == needed:
            return _with_own_calibration(home, config, earlier_file(name)), earlier
    return config, usual


def earlier_file(name: str) -> Path:
    """Return the file of a calibration that an earlier release has shipped."""
    return Path(str(packaged("skillmesh.backbone") / "calibrations" / "earlier" / f"{name}.safetensors"))


def _with_own_calibration(home: Path, config: AgentConfig, earlier: Path) -> AgentConfig:
    kept = config.model_copy(update={"calibration": Path(CALIBRATION_FILE)})
    try:
        write_whole(home / CALIBRATION_FILE, earlier.read_bytes(), mode=PRIVATE)
        kept.save(home)
    except OSError:  # a home without write permission, a full disk
        return config.model_copy(update={"calibration": earlier})
    log.warning(
        "%s keeps the calibration of an earlier release, with which its tasks were learned; to move it to the new "
        "one, run `skillmesh renew` with the folders of its tasks",
        home,
    )
    return kept


@cache
def release_of() -> dict[str, str]:
    """Return the release, "this" or "an earlier", that ships a backbone's calibration, by its fingerprint."""
    releases: dict[str, str] = {}
    for backbone, earlier in EARLIER.items():
        releases |= {backbone_fingerprint(Calibration.load(earlier_file(name))): "an earlier" for name in earlier}
        releases[backbone_fingerprint(load_calibration(backbone))] = "this"
    return releases


def _calibration_of_modules(home: Path) -> str | None:
    """Return the backbone's fingerprint in the first module that can be read; None if there is none."""
    for file in sorted((home / "bank").glob("*.skill")):
        with suppress(ModuleError):
            return read_card(file).backbone
    return None


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
    own = [path for path in entries if is_of_agent(path)]
    changed = [_close(path) for path in own]
    if len(own) == len(entries):
        changed.append(_close(home))
    return open_before and any(changed)


def is_of_agent(path: Path) -> bool:
    """Return whether a file or folder in a home is the agent's; others are there if its user chose one in use."""
    return bool(_OWN.fullmatch(path.name))


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

"""Where an agent lives: a folder with its settings, its key, its bank and all that it keeps."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import unicodedata
from pathlib import Path
from typing import Any

import platformdirs

from skillmesh.arguments import too_long
from skillmesh.backbone.backbone import load_calibration
from skillmesh.config import FILE as CONFIG_FILE
from skillmesh.config import AgentConfig
from skillmesh.errors import AgentError
from skillmesh.module import Identity
from skillmesh.teachers import fits, refuse_unfit

KEY_FILE = "key.pem"
CALIBRATION_FILE = "calibration.safetensors"


def home_folder(home: str | Path | None = None) -> Path:
    """`home`, or `SKILLMESH_HOME`, or the user's data folder."""
    folder = Path(home or os.environ.get("SKILLMESH_HOME") or _usual_home())
    if too_long(folder):
        raise AgentError(f"{str(folder)[:80]}… is too long for a home; expected parts of at most 255 bytes each")
    return folder


def _usual_home() -> Path:
    return Path(platformdirs.user_data_dir("skillmesh"))


def create_home(home: Path, **settings: Any) -> None:
    """Set up an agent: settings, a key of its own, an empty bank.

    A calibration file is copied into the home: without it the agent's modules are worth nothing.
    """
    if (home / CONFIG_FILE).exists():
        raise AgentError(f"there is an agent at {home} already; open it, or name another home")
    settings.setdefault("name", default_name(home))
    refuse_unfit(str(settings["name"]))
    calibration = settings.get("calibration")
    load_calibration(settings.get("backbone", "lite0"), calibration)
    if calibration is not None:
        settings["calibration"] = CALIBRATION_FILE
    config = AgentConfig.of(settings)
    try:
        home.mkdir(parents=True, exist_ok=True)
        if calibration is not None:
            shutil.copyfile(calibration, home / CALIBRATION_FILE)
    except OSError as error:
        raise AgentError(f"cannot make an agent at {home}: {error.strerror}; name another home") from error
    if not (home / KEY_FILE).exists():
        Identity.create(config.name).save(home / KEY_FILE)
    config.save(home)


def default_name(home: Path) -> str:
    """Return a name that tells agents apart: a home of its own names its agent, the usual home its user.

    The machine's name alone would be that of every agent on it.
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

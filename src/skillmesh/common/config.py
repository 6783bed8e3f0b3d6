"""An agent's settings: `agent.json` in its home for learning, `mesh.json` for its connection to other agents."""

from __future__ import annotations

import ipaddress
import re
from pathlib import Path
from typing import Annotated, Any

from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)

from skillmesh.common.choices import AnchorKind, Network, Representation, Support, Trust
from skillmesh.common.files import PRIVATE, write_whole
from skillmesh.errors import AgentError

FILE = "agent.json"


class AgentConfig(BaseModel):
    """Settings that an agent was created with. They never change: modules in the bank depend on them."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64)
    """Name with which the agent signs its modules."""
    backbone: str = "lite0"
    """Frozen network: lite0, xception, any timm name, or the name of an exported one."""
    weights: Path | None = None
    """Weights file, or folder of an exported network; `None`: from the installed package or timm's hub."""
    calibration: Path | None = None
    """Calibration file, relative to the home; `None`: the one shipped for the backbone."""
    representation: Representation = "descriptor"
    """Numbers of an image that heads and anchors work on."""
    compact: bool = False
    """Whether modules are stored in the calibration's basis, at about a third of the bytes."""
    anchor: AnchorKind = Field("sketch", validation_alias=AliasChoices("anchor", "mapper"))
    """Kind of anchor; older homes call the setting `mapper`."""
    rank: int = Field(8, ge=1, le=256)
    """sketch: rank of a task's scatter."""
    clusters: int = Field(25, ge=1, le=4096)
    """gmmc: number of Gaussians per task."""
    variance_floor: float = Field(1e-6, ge=1e-9, le=1e3)
    """gmmc: number added to every variance."""
    images_per_class: int = Field(5, ge=1, le=255)
    """maha: number of sample descriptors per class."""
    unanswered: float = Field(0.05, ge=0.001, le=0.5)
    """Share of images of known tasks that may stay unanswered, as unknown or not sure; with a smaller share, more
    images of other tasks are answered. No module depends on it."""
    seed: int = Field(0, ge=0)
    """Seed of every random choice in learning."""
    support: Support = "plain"
    """How names of classes in different tasks are matched, so that they support each other in answers. No module
    depends on it."""

    @model_validator(mode="after")
    def _only_descriptors_are_compact(self) -> AgentConfig:
        if self.compact and self.representation != "descriptor":
            raise ValueError("compact modules need the representation descriptor")
        return self

    @classmethod
    def of(cls, settings: dict[str, Any]) -> AgentConfig:
        """Return the settings that a user chose; raise `AgentError` if one is invalid."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise AgentError(_complaint(error)) from error

    def save(self, home: Path) -> None:
        write_whole(home / FILE, (self.model_dump_json(indent=2) + "\n").encode(), mode=PRIVATE)

    @classmethod
    def load(cls, home: Path) -> AgentConfig:
        path = home / FILE
        if not path.is_file():
            raise AgentError(
                f"there is no agent at {home}; name another home, or create one there with `skillmesh init`"
            )
        try:
            return cls.model_validate_json(path.read_text())
        except (ValidationError, UnicodeDecodeError) as error:
            raise AgentError(
                f"{path} is damaged: {_complaint(error)}; correct the file, put it back from a copy, or create an "
                "agent in another home"
            ) from error


# Settings of the mesh, kept in `mesh.json` in the home: the network, teachers to trust, limits on downloads.

MESH_FILE = "mesh.json"
PORT = 7447
DISCOVERY_PORT = 7446

Interest = Annotated[str, StringConstraints(min_length=1, max_length=256)]

_ENDPOINT = re.compile(
    r"(?:(?P<scheme>[a-z0-9-]+)/)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*)):(?P<port>\d{1,5})"
)


class TlsFiles(BaseModel):
    """Files for mutual TLS: the mesh's CA, this agent's certificate and its key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ca: Path
    certificate: Path
    key: Path

    def beside(self, home: Path) -> TlsFiles:
        """Return absolute paths; relative ones start at the home, whatever the working directory is."""
        base = home.resolve()
        return TlsFiles(ca=base / self.ca, certificate=base / self.certificate, key=base / self.key)


class MeshSettings(BaseModel):
    """How an agent connects to other agents. Endpoints are kept as `tcp/host:port` or, with TLS, `tls/…`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: Network = "machine"
    """machine: agents on this machine, with no network at all; lan: every agent that answers on the local network;
    fixed: the peers in `connect` and those that they know; client: a gateway in `connect`, from behind a NAT."""
    listen: tuple[str, ...] = ()
    """Addresses to listen on, as host:port."""
    connect: tuple[str, ...] = ()
    """Addresses of peers or of a gateway to connect to, as host:port."""
    interface: str | None = Field(None, min_length=1, max_length=64)
    """Network interface on which the network lan looks for agents; `None`: all of them."""
    discovery_port: int = Field(DISCOVERY_PORT, ge=1, le=65535)
    """Port for discovery. Agents with different ports do not find each other: two meshes on one network."""
    tls: TlsFiles | None = None
    """Files for mutual TLS; `None`: connections are not encrypted."""
    trust: Trust = "listed"
    """listed: accept modules of teachers added with `skillmesh trust add`; open: of every teacher."""
    interests: tuple[Interest, ...] = ()
    """Tasks to fetch: patterns of task names with `*`, or `tag:NAME`; empty: all tasks."""
    quota_bytes: int = Field(1_000_000_000, ge=0)
    """Size of the bank, in bytes, from which nothing more is fetched."""
    max_module_bytes: int = Field(8_000_000, ge=1)
    """Largest size of one received module, in bytes."""
    modules_per_teacher: int = Field(1_000, ge=1)
    """Largest number of modules kept from one teacher."""
    modules_per_hour: int = Field(1_200, ge=1)
    """Largest number of modules fetched from one teacher in an hour."""
    sync_seconds: float = Field(10.0, ge=0.1, le=86_400)
    """Longest time between two exchanges with peers, in seconds; after a change it is shorter."""

    @model_validator(mode="before")
    @classmethod
    def _endpoints_in_one_form(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        secure = given.get("tls") is not None
        changed = {}
        for name in ("listen", "connect"):
            if isinstance(given.get(name), list | tuple):
                changed[name] = tuple(
                    endpoint(text, secure=secure, any_port=name == "listen") for text in given[name]
                )
        return given | changed

    @model_validator(mode="after")
    def _network_and_endpoints_agree(self) -> MeshSettings:
        if self.network == "client" and not self.connect:
            raise ValueError("the network client needs a gateway to connect to, for example connect = host:7447")
        if self.network == "client" and self.listen:
            raise ValueError("the network client does not listen; leave listen empty, or use the network fixed")
        if self.interface is not None and self.network != "lan":
            raise ValueError(f"the network {self.network} uses no interface; leave interface out, or use lan")
        if self.network == "machine":
            for text in (*self.listen, *self.connect):
                if not is_here(text):
                    raise ValueError(
                        f"the network machine stays on this machine, but {text} is elsewhere; use 127.0.0.1, or "
                        "the network lan, fixed or client"
                    )
        return self

    @classmethod
    def of(cls, settings: dict[str, Any]) -> MeshSettings:
        """Return the settings that a user chose; raise `AgentError` if one is invalid."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise AgentError(_complaint(error)) from error

    def with_(self, **changes: Any) -> MeshSettings:
        """Return a copy of these settings with some of them changed, for one run."""
        return self.of(self.model_dump() | changes)

    def save(self, home: Path) -> None:
        write_whole(home / MESH_FILE, (self.model_dump_json(indent=2) + "\n").encode(), mode=PRIVATE)

    @classmethod
    def load(cls, home: Path) -> MeshSettings:
        """Read the settings in the home; return the defaults if there are none."""
        path = home / MESH_FILE
        try:
            return cls.model_validate_json(path.read_text())
        except FileNotFoundError:
            return cls.of({})
        except ValidationError as error:
            raise AgentError(f"{path} is damaged: {_complaint(error)}; correct or remove the file") from error
        except UnicodeDecodeError as error:
            raise AgentError(f"{path} cannot be read: {_complaint(error)}; correct or remove the file") from error
        except OSError as error:
            raise AgentError(f"{path} cannot be read: {error}; correct or remove the file") from error


def endpoint(text: object, *, secure: bool = False, any_port: bool = False) -> str:
    """Return `host:port`, `tcp/host:port` or `tls/host:port` in the form that the mesh uses.

    With TLS on, every endpoint uses TLS: a `tcp/` from before it was turned on becomes `tls/`, but `tls/` never
    becomes `tcp/`. `any_port` allows port 0, which lets the system choose one. Raises `ValueError`.
    """
    match = _ENDPOINT.fullmatch(str(text))
    if match is None or match["scheme"] not in (None, "tcp", "tls"):
        raise ValueError(f"{text!r} is not the address of an agent; expected host:port, such as 192.0.2.7:{PORT}")
    if match["scheme"] == "tls" and not secure:
        raise ValueError(f"{text!r} asks for TLS, but no certificate is set; set tls, or leave tls/ out")
    lowest, port = (0 if any_port else 1), int(match["port"])
    if not lowest <= port <= 65535:
        raise ValueError(f"{text!r} has the port {port}; expected {lowest} to 65535")
    return f"{'tls' if secure else 'tcp'}/{match['host']}:{port}"


def host_and_port(locator: str) -> tuple[str, int]:
    """Return host and port of an endpoint in the form that `endpoint` returns."""
    host, _, port = locator.partition("/")[2].rpartition(":")
    return host.strip("[]"), int(port)


def is_here(locator: str) -> bool:
    """Return whether an endpoint is on this machine."""
    host, _ = host_and_port(locator)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _complaint(error: ValidationError | UnicodeDecodeError) -> str:
    """Return what was found and what was expected, for the first setting at fault."""
    file = "a JSON object with one entry for each setting"
    if isinstance(error, UnicodeDecodeError):
        return f"found bytes that are not UTF-8 text, expected {file}"
    first = error.errors(include_url=False)[0]
    name, message = ".".join(map(str, first["loc"])), first["msg"].removeprefix("Value error, ")
    if first["type"] == "json_invalid":
        return f"found text that is not valid JSON ({message.removeprefix('Invalid JSON: ')}), expected {file}"
    if first["type"] == "extra_forbidden":
        return f"found the setting {name}, which does not exist; leave it out"
    if first["type"] == "missing":
        return f"the setting {name} is missing"
    if not name:
        return message.replace("Input should be an object", f"found another kind of value, expected {file}")
    expected = re.sub(r"^(Input should be|\w+ should have) ", "expected ", message)
    expected = re.sub(r"^expected (?=greater|less)", "expected a number ", expected)
    return f"the setting {name} is {first['input']!r}; {expected[0].lower()}{expected[1:]}"

"""An agent's settings: `agent.json` in its home says what it learns with, `mesh.json` how it meets others."""

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
    """What an agent was set up with. It stays as it is: modules in the bank depend on it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(min_length=1, max_length=64)
    backbone: str = "lite0"
    weights: Path | None = None
    calibration: Path | None = None
    """Relative to the home; `None`: the one shipped for the backbone."""
    representation: Representation = "descriptor"
    compact: bool = False
    anchor: AnchorKind = Field("sketch", validation_alias=AliasChoices("anchor", "mapper"))
    """Older homes call it mapper."""
    rank: int = Field(8, ge=1, le=256)
    clusters: int = Field(25, ge=1, le=4096)
    variance_floor: float = Field(1e-6, ge=1e-9, le=1e3)
    images_per_class: int = Field(5, ge=1, le=255)
    seed: int = Field(0, ge=0)
    support: Support = "plain"
    """By what names classes of several tasks support one another in answers; no module depends on it."""

    @model_validator(mode="after")
    def _only_descriptors_are_compact(self) -> AgentConfig:
        if self.compact and self.representation != "descriptor":
            raise ValueError("compact modules need the representation descriptor")
        return self

    @classmethod
    def of(cls, settings: dict[str, Any]) -> AgentConfig:
        """Check settings that a user chose."""
        try:
            return cls(**settings)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            name = ".".join(map(str, first["loc"]))
            found = f"the setting {name} is {first['input']!r}; " if name else "the settings contradict: "
            raise AgentError(found + first["msg"].lower()) from error

    def save(self, home: Path) -> None:
        write_whole(home / FILE, (self.model_dump_json(indent=2) + "\n").encode(), mode=PRIVATE)

    @classmethod
    def load(cls, home: Path) -> AgentConfig:
        path = home / FILE
        if not path.is_file():
            raise AgentError(
                f"there is no agent at {home}; name another home, or make one there with `skillmesh init`"
            )
        try:
            return cls.model_validate_json(path.read_text())
        except (ValidationError, UnicodeDecodeError) as error:
            first = str(error).splitlines()
            raise AgentError(
                f"{path} is damaged: {' '.join(first[:3])}; mend the file, or make a new agent in another home"
            ) from error


# How an agent meets others, as `mesh.json` in its home keeps it: the network, whom to trust, how much to take.

MESH_FILE = "mesh.json"
PORT = 7447
DISCOVERY_PORT = 7446

Interest = Annotated[str, StringConstraints(min_length=1, max_length=256)]

_ENDPOINT = re.compile(
    r"(?:(?P<scheme>[a-z0-9-]+)/)?(?P<host>\[[0-9a-fA-F:.]+\]|[A-Za-z0-9](?:[A-Za-z0-9._-]*)):(?P<port>\d{1,5})"
)


class TlsFiles(BaseModel):
    """The files of mutual TLS: the mesh's CA, this agent's certificate and its key."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    ca: Path
    certificate: Path
    key: Path

    def beside(self, home: Path) -> TlsFiles:
        """Take relative paths as lying in the home, wherever the process runs."""
        base = home.resolve()
        return TlsFiles(ca=base / self.ca, certificate=base / self.certificate, key=base / self.key)


class MeshSettings(BaseModel):
    """What an agent needs to know to meet others. Endpoints are kept as `tcp/host:port` or, with TLS, `tls/…`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: Network = "machine"
    """machine: agents on this machine, with no network at all; lan: whoever answers on the local network; fixed:
    the peers in `connect` and those that they know; client: a gateway in `connect`, from behind a NAT."""
    listen: tuple[str, ...] = ()
    connect: tuple[str, ...] = ()
    interface: str | None = Field(None, min_length=1, max_length=64)
    """Where the network lan looks for others; `None`: everywhere."""
    discovery_port: int = Field(DISCOVERY_PORT, ge=1, le=65535)
    """Agents with different ports do not find each other: two meshes on one network."""
    tls: TlsFiles | None = None
    trust: Trust = "listed"
    interests: tuple[Interest, ...] = ()
    """Patterns of task names with `*`, or `tag:NAME`; none: everything."""
    quota_bytes: int = Field(1_000_000_000, ge=0)
    max_module_bytes: int = Field(8_000_000, ge=1)
    modules_per_teacher: int = Field(1_000, ge=1)
    modules_per_hour: int = Field(1_200, ge=1)
    """Of one teacher."""
    sync_seconds: float = Field(10.0, ge=0.1, le=86_400)

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
            raise ValueError("the network client needs a gateway to connect to, as in connect = host:7447")
        if self.network == "client" and self.listen:
            raise ValueError("the network client listens to nothing; leave listen empty, or use fixed")
        if self.interface is not None and self.network != "lan":
            raise ValueError(f"the network {self.network} looks on no interface; leave interface out, or use lan")
        if self.network == "machine":
            for text in (*self.listen, *self.connect):
                if not is_here(text):
                    raise ValueError(
                        f"the network machine stays on this machine, {text} leads away from it; use 127.0.0.1, or "
                        "the network lan, fixed or client"
                    )
        return self

    @classmethod
    def of(cls, settings: dict[str, Any]) -> MeshSettings:
        """Check settings that a user chose."""
        try:
            return cls(**settings)
        except ValidationError as error:
            raise AgentError(_complaint(error)) from error

    def with_(self, **changes: Any) -> MeshSettings:
        """Return these settings with some of them changed, for one run."""
        return self.of(self.model_dump() | changes)

    def save(self, home: Path) -> None:
        write_whole(home / MESH_FILE, (self.model_dump_json(indent=2) + "\n").encode(), mode=PRIVATE)

    @classmethod
    def load(cls, home: Path) -> MeshSettings:
        """Read the home's settings; where there are none, the defaults hold."""
        path = home / MESH_FILE
        try:
            return cls.model_validate_json(path.read_text())
        except FileNotFoundError:
            return cls.of({})
        except ValidationError as error:
            raise AgentError(f"{path} is damaged: {_complaint(error)}; mend or remove the file") from error
        except (OSError, UnicodeDecodeError) as error:
            raise AgentError(f"{path} cannot be read: {error}; mend or remove the file") from error


def endpoint(text: object, *, secure: bool = False, any_port: bool = False) -> str:
    """Bring `host:port`, `tcp/host:port` or `tls/host:port` into the form in which the mesh uses it.

    With TLS on, everything is TLS: a `tcp/` from before it was turned on is lifted, never the other way round.
    `any_port` allows port 0, which lets the system choose one.
    """
    match = _ENDPOINT.fullmatch(str(text))
    if match is None or match["scheme"] not in (None, "tcp", "tls"):
        raise ValueError(f"{text!r} is no address of an agent; expected host:port, such as 192.0.2.7:{PORT}")
    if match["scheme"] == "tls" and not secure:
        raise ValueError(f"{text!r} asks for TLS, and no certificate is set; set tls, or leave tls/ away")
    lowest, port = (0 if any_port else 1), int(match["port"])
    if not lowest <= port <= 65535:
        raise ValueError(f"{text!r} has the port {port}; expected {lowest} to 65535")
    return f"{'tls' if secure else 'tcp'}/{match['host']}:{port}"


def host_and_port(locator: str) -> tuple[str, int]:
    """Split an endpoint as `endpoint` returns it."""
    host, _, port = locator.partition("/")[2].rpartition(":")
    return host.strip("[]"), int(port)


def is_here(locator: str) -> bool:
    """Whether an endpoint is on this machine."""
    host, _ = host_and_port(locator)
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    message = first["msg"].removeprefix("Value error, ")
    name = ".".join(map(str, first["loc"]))
    return f"the setting {name} is {first['input']!r}; {message.lower()}" if name else message

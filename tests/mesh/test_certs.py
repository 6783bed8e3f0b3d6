"""Certificates of a mesh: their content, and which agents real handshakes accept."""

from __future__ import annotations

import socket
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import zenoh
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skillmesh.common.config import MeshSettings, TlsFiles
from skillmesh.errors import MeshError
from skillmesh.mesh import certs
from skillmesh.mesh import session as sessions
from skillmesh.mesh.session import close_session, introduce, locators, open_router, open_session
from skillmesh.module import Identity

pytestmark = pytest.mark.long

ANNA, BERT, FOE = (Identity(name, name.encode() * 8).public_key for name in ("anna", "bert", "evil"))


class Mesh(NamedTuple):
    folder: Path
    anna: TlsFiles
    bert: TlsFiles
    foe: TlsFiles
    """Files of an agent with a valid certificate of another mesh."""


@pytest.fixture(scope="module")
def mesh(tmp_path_factory: pytest.TempPathFactory) -> Mesh:
    folder = tmp_path_factory.mktemp("certs")
    certs.create_ca(folder / "ca")
    certs.create_ca(folder / "foreign")
    return Mesh(
        folder,
        certs.issue(folder / "ca", ANNA, "Anna", folder / "anna"),
        certs.issue(folder / "ca", BERT, "Bert ü", folder / "bert"),
        certs.issue(folder / "foreign", FOE, "Foe", folder / "foe"),
    )


def settings(tls: TlsFiles | None, *connect: str) -> MeshSettings:
    given: dict[str, Any] = {"network": "fixed", "listen": ["127.0.0.1:0"], "connect": connect, "tls": tls}
    return MeshSettings.of(given)


def nearby(port: int, tls: TlsFiles | None) -> MeshSettings:
    return MeshSettings.of({"discovery_port": port, "tls": tls})


def discovery_port() -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def joined(chosen: MeshSettings) -> Iterator[zenoh.Session]:
    session = open_session(chosen, Path())
    try:
        yield session
    finally:
        close_session(session)


def meets_someone(session: zenoh.Session, seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not session.info.transports() and time.monotonic() < end:
        time.sleep(0.01)
    return bool(session.info.transports())


def read(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


# what is issued


def test_a_certificate_names_its_agent_and_what_it_is_for(mesh: Mesh) -> None:
    certificate = read(mesh.bert.certificate)
    assert certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value == BERT
    assert certificate.subject.get_attributes_for_oid(NameOID.PSEUDONYM)[0].value == "Bert ü"
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert set(uses) == {ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH}
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.UniformResourceIdentifier) == [f"urn:skillmesh:{BERT}"]
    certificate.verify_directly_issued_by(read(mesh.bert.ca))


def test_the_authority_may_sign_agents_and_no_other_authority(mesh: Mesh) -> None:
    constraints = read(mesh.anna.ca).extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert (constraints.value.ca, constraints.value.path_length) == (True, 0)


@pytest.mark.parametrize("wrong_by", [timedelta(days=-1), timedelta(days=1)])
def test_certificates_allow_for_clocks_that_are_wrong_by_a_day(mesh: Mesh, wrong_by: timedelta) -> None:
    now = datetime.now(UTC) + wrong_by
    for path in (mesh.anna.ca, mesh.anna.certificate):
        assert read(path).not_valid_before_utc < now < read(path).not_valid_after_utc
    assert read(mesh.anna.certificate).not_valid_after_utc <= read(mesh.anna.ca).not_valid_after_utc


def test_keys_are_for_their_owner_alone(mesh: Mesh) -> None:
    for key in (mesh.anna.key, mesh.folder / "ca" / certs.CA_KEY):
        assert stat.S_IMODE(key.stat().st_mode) == 0o600


def test_no_stray_files_are_left(mesh: Mesh) -> None:
    assert {p.name for p in (mesh.folder / "anna").iterdir()} == {"agent.pem", "agent.key", "ca.pem"}


def test_an_existing_authority_is_never_overwritten(mesh: Mesh) -> None:
    before = (mesh.folder / "ca" / certs.CA_KEY).read_bytes()
    with pytest.raises(MeshError, match="already exists"):
        certs.create_ca(mesh.folder / "ca")
    assert (mesh.folder / "ca" / certs.CA_KEY).read_bytes() == before


def test_an_existing_key_is_never_overwritten(tmp_path: Path) -> None:
    """This also holds for two processes that check for a key at the same moment."""
    certs._new_key(tmp_path / "agent.key")
    before = (tmp_path / "agent.key").read_bytes()
    with pytest.raises(MeshError, match=r"cannot write the key .*agent\.key: File exists; nothing was issued"):
        certs._new_key(tmp_path / "agent.key")
    assert (tmp_path / "agent.key").read_bytes() == before


def test_issuing_again_renews_the_certificate_and_keeps_the_key(mesh: Mesh, tmp_path: Path) -> None:
    first = certs.issue(mesh.folder / "ca", ANNA, "Anna", tmp_path)
    key, certificate = first.key.read_bytes(), first.certificate.read_bytes()
    again = certs.issue(mesh.folder / "ca", ANNA, "Anna", tmp_path)
    assert again.key.read_bytes() == key
    assert again.certificate.read_bytes() != certificate
    certs.check(again)


def test_another_agents_or_meshs_folder_is_left_alone(mesh: Mesh) -> None:
    with pytest.raises(MeshError, match="another agent"):
        certs.issue(mesh.folder / "ca", BERT, "Bert", mesh.folder / "anna")
    with pytest.raises(MeshError, match="another mesh"):
        certs.issue(mesh.folder / "foreign", ANNA, "Anna", mesh.folder / "anna")


@pytest.mark.parametrize(
    ("agent_id", "name"), [("abc", "Anna"), (ANNA.upper(), "Anna"), (ANNA, ""), (ANNA, "x" * 65)]
)
def test_ids_and_names_are_checked(mesh: Mesh, tmp_path: Path, agent_id: str, name: str) -> None:
    with pytest.raises(MeshError, match="expected"):
        certs.issue(mesh.folder / "ca", agent_id, name, tmp_path)
    assert not list(tmp_path.iterdir())


def test_issuing_without_an_authority_says_so(tmp_path: Path) -> None:
    with pytest.raises(MeshError, match=r"cannot read .*ca\.pem"):
        certs.issue(tmp_path, ANNA, "Anna", tmp_path / "out")


# what is refused before anything is opened


def test_invalid_tls_files_are_reported(mesh: Mesh, tmp_path: Path) -> None:
    anna, junk = mesh.anna, tmp_path / "junk.pem"
    junk.write_text("no PEM")
    for files, message in (
        (anna.model_copy(update={"ca": mesh.foe.ca}), "was not issued by"),
        (anna.model_copy(update={"key": mesh.bert.key}), "is not the key of"),
        (anna.model_copy(update={"key": tmp_path / "absent"}), "cannot read .*absent"),
        (anna.model_copy(update={"ca": junk}), "holds no certificate"),
        (anna.model_copy(update={"certificate": junk}), "holds no certificate"),
        (anna.model_copy(update={"key": junk}), "holds no readable key"),
    ):
        with pytest.raises(MeshError, match=message):
            open_session(settings(files), Path())


def test_an_expired_certificate_is_reported(mesh: Mesh, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certs, "AGENT_DAYS", -1)
    ended = certs.issue(mesh.folder / "ca", ANNA, "Anna", tmp_path)
    with pytest.raises(MeshError, match=r"is valid from .* to .* clock shows"):
        open_session(settings(ended), Path())


# handshakes


def test_agents_of_one_mesh_link_and_know_each_others_id(mesh: Mesh) -> None:
    with joined(settings(mesh.anna)) as anna, joined(settings(mesh.bert, *locators(anna))) as bert:
        assert meets_someone(bert, 5)
        assert [link.auth_identifier for link in bert.info.links()] == [ANNA]
        assert meets_someone(anna, 1)
        assert [link.auth_identifier for link in anna.info.links()] == [BERT]


def test_agents_with_certificates_find_each_other_by_multicast(mesh: Mesh) -> None:
    port = discovery_port()
    with joined(nearby(port, mesh.anna)) as anna, joined(nearby(port, mesh.bert)) as bert:
        assert meets_someone(bert, 5)
        assert locators(anna)[0].startswith("tls/127.0.0.1:")


def test_an_agent_with_a_certificate_does_not_connect_to_a_discovered_one_without(mesh: Mesh) -> None:
    port = discovery_port()
    with joined(nearby(port, mesh.anna)) as anna, joined(nearby(port, None)) as plain:
        assert not meets_someone(plain, 1.5)
        assert not anna.info.transports()


def test_agents_with_certificates_can_be_introduced(mesh: Mesh) -> None:
    with joined(settings(mesh.anna)) as anna, joined(settings(mesh.bert)) as bert:
        assert introduce(anna, settings(mesh.anna), Path(), locators(bert), seconds=5) == 1


def test_a_gateway_accepts_only_agents_of_its_mesh(mesh: Mesh) -> None:
    gateway = open_router(["127.0.0.1:0"], tls=mesh.bert, discovery_port=None)
    try:
        place = locators(gateway)[0]
        with joined(MeshSettings.of({"network": "client", "connect": [place], "tls": mesh.anna})) as anna:
            assert anna.info.routers_zid()
        with joined(settings(mesh.foe, place)) as foe:
            assert not meets_someone(foe, 0.7)
    finally:
        close_session(gateway)


def _insider(config: dict[str, Any], listen: Sequence[str] = (), **changes: Any) -> zenoh.Session:
    """Open a session that uses TLS and trusts the mesh's CA, but has no certificate of the mesh."""
    tls = {f"transport/link/tls/{key}": value for key, value in changes.items()}
    return sessions._open(config | {"transport/link/protocols": ["tls"]} | tls, listen)


@pytest.mark.parametrize("kind", ["plain", "foreign mesh", "no certificate", "foreign certificate"])
def test_agents_without_a_certificate_of_the_mesh_are_refused(mesh: Mesh, kind: str) -> None:
    with joined(settings(mesh.anna)) as anna:
        place = locators(anna)[0]
        outside = sessions._common([place], None)
        trusting = {"root_ca_certificate": str(mesh.anna.ca), "verify_name_on_connect": False}
        if kind == "plain":
            intruder = open_session(settings(None, place.removeprefix("tls/")), Path())
        elif kind == "foreign mesh":
            intruder = open_session(settings(mesh.foe, place), Path())
        elif kind == "no certificate":
            intruder = _insider(outside, **trusting)
        else:
            foreign = {"connect_certificate": str(mesh.foe.certificate), "connect_private_key": str(mesh.foe.key)}
            intruder = _insider(outside, enable_mtls=True, **trusting, **foreign)
        try:
            assert not meets_someone(intruder, 0.7)
            assert not anna.info.transports()
        finally:
            close_session(intruder)


def test_an_agent_does_not_link_with_a_listener_of_another_mesh(mesh: Mesh) -> None:
    foreign = {"listen_certificate": str(mesh.foe.certificate), "listen_private_key": str(mesh.foe.key)}
    trap = _insider(sessions._common((), None), ["tls/127.0.0.1:0"], **foreign)
    try:
        with joined(settings(mesh.anna, locators(trap)[0])) as anna:
            assert not meets_someone(anna, 0.7)
    finally:
        close_session(trap)

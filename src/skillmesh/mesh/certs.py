"""A small certificate authority for one mesh, and the certificates of its agents.

The holder of `ca.key` decides which agents may connect; signing and trusting modules is independent of that.
A certificate's common name is the agent's id. Certificates are valid from two days before they are made, so that a
clock that is wrong by a day locks no agent out.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives import serialization as ser
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from skillmesh.common.config import TlsFiles
from skillmesh.common.files import PRIVATE, make_folder, write_whole
from skillmesh.errors import MeshError
from skillmesh.module.identity import is_key, is_name

CA, CA_KEY = "ca.pem", "ca.key"
CERTIFICATE, KEY = "agent.pem", "agent.key"
BACKDATED = timedelta(days=2)
CA_DAYS = 20 * 365
AGENT_DAYS = 5 * 365


def create_ca(folder: Path) -> Path:
    """Create a mesh's authority: `ca.key`, to be kept safe, and `ca.pem`, for every agent; return the latter."""
    for path in (folder / CA_KEY, folder / CA):
        if path.exists():
            raise MeshError(f"{path} already exists; issue certificates with it, or choose another folder")
    key = _new_key(folder / CA_KEY)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "skillmesh CA")])
    builder = (
        _builder(name, name, key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
    )
    _write(folder / CA, _pem(builder.sign(key, hashes.SHA256())))
    return folder / CA


def issue(folder: Path, agent_id: str, name: str, out: Path) -> TlsFiles:
    """Issue a certificate for an agent with the authority in `folder`, and write the agent's files to `out`.

    A key that already exists in `out` is kept: issuing again gives the same agent a new certificate.
    """
    if not is_key(agent_id):
        raise MeshError(f"the agent's id is {agent_id[:80]!r}, expected its public key, 64 hex digits")
    if not is_name(name):
        raise MeshError(f"the agent's name is {name[:80]!r}, expected 1–64 printable characters")
    authority, authority_key = _certificate(folder / CA), _key(folder / CA_KEY)
    _refuse_foreign_folder(out, agent_id, authority)
    key = _key(out / KEY) if (out / KEY).exists() else _new_key(out / KEY)
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, agent_id), x509.NameAttribute(NameOID.PSEUDONYM, name)]
    )
    uses = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
    uri = x509.UniformResourceIdentifier(f"urn:skillmesh:{agent_id}")
    builder = (
        _builder(subject, authority.subject, key.public_key(), AGENT_DAYS, authority.not_valid_after_utc)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        .add_extension(x509.SubjectAlternativeName([uri]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
    )
    _write(out / CERTIFICATE, _pem(builder.sign(authority_key, hashes.SHA256())))
    _write(out / CA, _pem(authority))
    return TlsFiles(ca=out / CA, certificate=out / CERTIFICATE, key=out / KEY)


_UNREADABLE = (ValueError, UnsupportedAlgorithm, x509.InvalidVersion)
"""Errors that `cryptography` raises on keys and certificates that are damaged or of an unknown kind."""


def check(files: TlsFiles) -> None:
    """Raise `MeshError` for files that no peer would accept: zenoh would open with them and then find no peer."""
    pem = _read(files.ca)
    try:
        authorities = x509.load_pem_x509_certificates(pem)
    except _UNREADABLE as error:
        raise MeshError(f"{files.ca} holds no certificate; expected the mesh's ca.pem") from error
    certificate, key = _certificate(files.certificate), _key(files.key)
    if certificate.public_key() != key.public_key():
        raise MeshError(f"{files.key} is not the key of {files.certificate}; use the pair that was issued")
    if not any(_issued(certificate, authority) for authority in authorities):
        raise MeshError(f"{files.certificate} was not issued by {files.ca}; use the files of one mesh")
    now = datetime.now(UTC)
    if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
        raise MeshError(
            f"{files.certificate} is valid from {certificate.not_valid_before_utc:%Y-%m-%d} to "
            f"{certificate.not_valid_after_utc:%Y-%m-%d}, the clock shows {now:%Y-%m-%d}; set the clock, or issue "
            "a new certificate"
        )


def _refuse_foreign_folder(out: Path, agent_id: str, authority: x509.Certificate) -> None:
    if (out / CA).exists() and _certificate(out / CA) != authority:
        raise MeshError(f"{out} holds the certificate of another mesh; choose another folder")
    if (out / CERTIFICATE).exists():
        names = _certificate(out / CERTIFICATE).subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if not names or names[0].value != agent_id:
            raise MeshError(f"{out} holds the certificate of another agent; choose another folder")


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    days: int,
    latest: datetime | None = None,
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    end = now + timedelta(days=days)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(end if latest is None else min(end, latest))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _issued(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        certificate.verify_directly_issued_by(authority)
    except (*_UNREADABLE, TypeError, InvalidSignature):
        return False
    return True


def _certificate(path: Path) -> x509.Certificate:
    pem = _read(path)
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        certificate.public_key()  # raises the errors that loading does not
        return certificate
    except _UNREADABLE as error:
        raise MeshError(f"{path} holds no certificate; expected a PEM file; restore or reissue it") from error


def _key(path: Path) -> ec.EllipticCurvePrivateKey:
    pem = _read(path)
    try:
        key = ser.load_pem_private_key(pem, password=None)
    except (*_UNREADABLE, TypeError) as error:
        raise MeshError(f"{path} holds no readable key; expected a PEM file without a password") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise MeshError(f"{path} holds a {type(key).__name__}; expected the EC key of a mesh certificate")
    return key


def _new_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """Create a key in a new file that only its owner can read; an existing key is never overwritten."""
    key = ec.generate_private_key(ec.SECP256R1())
    try:
        make_folder(path.parent)
        pem = key.private_bytes(ser.Encoding.PEM, ser.PrivateFormat.PKCS8, ser.NoEncryption())
        write_whole(path, pem, mode=PRIVATE, new=True)
    except OSError as error:
        raise MeshError(f"cannot write the key {path}: {error.strerror}; nothing was issued") from error
    return key


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(ser.Encoding.PEM)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise MeshError(f"cannot read {path}: {error.strerror}; check the path, or issue a certificate") from error


def _write(path: Path, content: bytes) -> None:
    """Write the file completely or not at all: an agent may be reading the old one."""
    try:
        write_whole(path, content)
    except OSError as error:
        raise MeshError(f"cannot write {path}: {error.strerror}; free disk space or fix the folder") from error

"""A certificate authority for tests and small installations, and the certificates it issues.

Needs the package ``cryptography``.
"""

from __future__ import annotations

import ipaddress
import os
import tempfile
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Certificates begin in the past, because the clocks of machines differ.
_BACKDATED = timedelta(hours=1)


class Issued(NamedTuple):
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        """The certificate in PEM."""
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        """The key in PEM, not encrypted."""
        return self.key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def make_authority(name: str, days: float) -> Issued:
    """Return a new certificate authority, valid for ``days`` days from now."""
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(name, name, key, days).add_extension(
        x509.BasicConstraints(ca=True, path_length=0), critical=True
    )
    usage = _usage(signs_certificates=True)
    return Issued(builder.add_extension(usage, critical=True).sign(key, hashes.SHA256()), key)


def issue(
    authority: Issued, name: str, days: float, hosts: Iterable[str] = (), *, for_server: bool
) -> Issued:
    """Return a certificate for a server at ``hosts``, names or addresses, or for a client.

    A server's certificate is a client's, too: interpreters are both.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    issuer = authority.certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)[0].value
    builder = _builder(name, str(issuer), key, days).add_extension(
        x509.BasicConstraints(ca=False, path_length=None), critical=True
    )
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH]
    if for_server:
        purposes.append(ExtendedKeyUsageOID.SERVER_AUTH)
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    builder = builder.add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    authority_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key())
    builder = builder.add_extension(authority_key, critical=False)
    return Issued(builder.sign(authority.key, hashes.SHA256()), key)


def write_pair(folder: Path, name: str, issued: Issued, chain: bytes = b"") -> None:
    """Write ``NAME.pem``, with the certificates that issued it, and ``NAME.key``. Raises OSError.

    Each is replaced atomically, the key first: a reader of both notices if they do not match.
    """
    _replace(folder / f"{name}.key", issued.key_pem, 0o600)
    _replace(folder / f"{name}.pem", issued.pem + chain, 0o644)


def read_pair(folder: Path, name: str) -> Issued:
    """Return the certificate and key that ``write_pair`` wrote.

    Raises OSError, and ValueError if they cannot be parsed or the key is of another kind.
    """
    certificate = x509.load_pem_x509_certificate((folder / f"{name}.pem").read_bytes())
    key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError(f"{folder / name}.key is not an elliptic-curve key")
    return Issued(certificate, key)


def _builder(
    name: str, issuer: str, key: ec.EllipticCurvePrivateKey, days: float
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(_common_name(name))
        .issuer_name(_common_name(issuer))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(min(now, now + timedelta(days=days)) - _BACKDATED)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _common_name(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _replace(path: Path, data: bytes, mode: int) -> None:
    descriptor, name = tempfile.mkstemp(prefix=f"{path.name}.", dir=path.parent)
    try:
        with open(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise

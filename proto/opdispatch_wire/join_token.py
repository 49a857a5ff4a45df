"""Join tokens: a token together with the hash of the CA of its daemon's certificate.

``opdj1.HASH.TOKEN``. With a join token, a machine without any certificates can verify the daemon
before it sends the token: the certificates that the daemon presents must include a CA with that
SHA-256, against which the daemon's certificate is verified.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import socket
import ssl
from typing import Any, NoReturn

PREFIX = "opdj1"
_FORM = re.compile(rf"{PREFIX}\.([0-9a-f]{{64}})\.([^.]+)")
_PATIENCE = 5.0
# By hash: a CA is the same wherever it is presented.
_FOUND: dict[str, bytes] = {}
_BLOCK = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.S)


def make_join_token(token: str, ca_pem: str) -> str:
    """Return a token with the hash of a CA, given its certificate in PEM.

    Raises ValueError for anything but one certificate.
    """
    blocks = _BLOCK.findall(ca_pem)
    if len(blocks) != 1:
        raise ValueError(f"the CA has {len(blocks)} certificates; expected one, in PEM")
    return f"{PREFIX}.{_digest(ssl.PEM_cert_to_DER_cert(blocks[0]))}.{token}"


def split_join_token(text: str) -> tuple[str, str]:
    """Return the hash and the token of a join token; "" and ``text`` for any other token."""
    found = _FORM.fullmatch(text)
    return (found[1], found[2]) if found else ("", text)


def find_pinned_ca(pin: str, host: str, port: int) -> bytes:
    """Return the CA of a hash, in PEM, as presented by the server at that address.

    Sends only a handshake; waits for up to five seconds the first time. Raises UnauthenticatedError
    if no CA has that hash, and DaemonUnavailableError.
    """
    if pin not in _FOUND:
        for shown in _shown_by(host, port):
            if _digest(shown) == pin:
                _FOUND[pin] = ssl.DER_cert_to_PEM_cert(shown).encode()
                break
        else:
            _refuse(f"{host}:{port}")
    return _FOUND[pin]


def _shown_by(host: str, port: int) -> list[bytes]:
    """Return the certificates that a server presents, which proves nothing yet."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    try:
        with (
            socket.create_connection((host, port), _PATIENCE) as plain,
            context.wrap_socket(plain, server_hostname=host) as connection,
        ):
            with contextlib.suppress(AttributeError):  # from Python 3.13 on
                return list(connection.get_unverified_chain())  # type: ignore[attr-defined]
            chain: Any = connection._sslobj.get_unverified_chain() or ()  # type: ignore[attr-defined]
            return [ssl.PEM_cert_to_DER_cert(each.public_bytes()) for each in chain]
    except OSError as error:
        from opdispatch_wire.errors import DaemonUnavailableError

        why = error.strerror or str(error)
        raise DaemonUnavailableError(
            f"no daemon with TLS answers at {host}:{port}: {why}",
            hint="start it with `opdispatch serve --tls-cert`: join tokens require TLS",
            address=f"{host}:{port}",
            started="no",
        ) from None


def _digest(certificate: bytes) -> str:
    return hashlib.sha256(certificate).hexdigest()


def _refuse(address: str) -> NoReturn:
    from opdispatch_wire.errors import UnauthenticatedError

    raise UnauthenticatedError(
        f"{address} does not present the CA certificate that the join token names: it is another "
        "daemon, or a proxy in between answers, or its --tls-cert file does not include the CA "
        "after the server's certificate",
        hint="ask the daemon's operator for a new join token: "
        "`opdispatch token create --tls-ca ca.pem`",
    )

"""The credentials of a client: a token and certificates, reread when their files change.

Imports the package ``opdispatch`` only for errors, because probes start frequently.
"""

from __future__ import annotations

import contextlib
import os
import re
import ssl
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn, cast

import grpc

from opdispatch_wire.address_forms import UnixAddress, parse_address
from opdispatch_wire.asyncio_grpc import asyncio_channel
from opdispatch_wire.join_token import find_pinned_ca, split_join_token
from opdispatch_wire.secured_channel import Metadata, SecuredChannel

TOKEN_VARIABLE = "OPDISPATCH_TOKEN"
TOKEN_FILE_VARIABLE = "OPDISPATCH_TOKEN_FILE"

TLS_CA_VARIABLE = "OPDISPATCH_TLS_CA"
TLS_CERT_VARIABLE = "OPDISPATCH_TLS_CERT"
TLS_KEY_VARIABLE = "OPDISPATCH_TLS_KEY"

AUTHORIZATION = "authorization"
"""The metadata key for a token, after the word Bearer."""

_LONGEST_TOKEN = 4096
# Seconds between the first attempts to read certificates, which are replaced file by file.
_PAUSES = (0.05, 0.1, 0.2)
_TOKEN = re.compile(r"[\x21-\x7e]+")

Options = Sequence[tuple[str, int]]
PathLike = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class Credentials:
    """A client's credentials. Secrets never appear in its repr.

    ``tls_ca`` has the CA certificates for verifying the daemon's; with it, TCP addresses use TLS.
    ``tls_cert`` and ``tls_key`` are the client's own, for mutual TLS.
    """

    token: str = field(default="", repr=False)
    token_file: str = ""
    tls_ca: str = ""
    tls_cert: str = ""
    tls_key: str = ""
    pin: str = ""
    """The hash of the daemon's CA, from a join token; ``tls_ca`` takes precedence."""

    @classmethod
    def of(
        cls,
        token: str | None = None,
        token_file: PathLike | None = None,
        *,
        tls_ca: PathLike | None = None,
        tls_cert: PathLike | None = None,
        tls_key: PathLike | None = None,
    ) -> Credentials:
        """Return the given credentials, completed from the environment."""
        if token is None and token_file is None:
            token = os.environ.get(TOKEN_VARIABLE)
            token_file = os.environ.get(TOKEN_FILE_VARIABLE)
        pin, token = split_join_token(token or "")
        if not token and token_file:
            pin = _pin_in(token_file)
        return cls(
            pin=pin,
            token=token,
            token_file="" if token or not token_file else os.fspath(token_file),
            tls_ca=_given_or_set(tls_ca, TLS_CA_VARIABLE),
            tls_cert=_given_or_set(tls_cert, TLS_CERT_VARIABLE),
            tls_key=_given_or_set(tls_key, TLS_KEY_VARIABLE),
        )

    def without_token(self) -> Credentials:
        """Return only the certificates, for a peer that must not get the token."""
        return replace(self, token="", token_file="")

    def channel(self, address: str, options: Options) -> grpc.Channel:
        """Return a blocking channel to ``address`` that sends the credentials.

        At a unix socket none are sent: the system identifies the peer. Raises UnauthenticatedError
        for a token or a certificate that cannot be read, UnsafeAddressError for an address where a
        token could be overheard, and AddressFormError.
        """

        def make(target: str, tls: grpc.ChannelCredentials | None) -> grpc.Channel:
            if tls is None:
                return grpc.insecure_channel(target, options=options)
            return grpc.secure_channel(target, tls, options=options)

        return cast("grpc.Channel", self._secured(address, make, is_asyncio=False))

    def asyncio_channel(self, address: str, options: Options) -> grpc.aio.Channel:
        """Return a channel for the running event loop; otherwise as ``channel``."""

        def make(target: str, tls: grpc.ChannelCredentials | None) -> grpc.aio.Channel:
            return asyncio_channel(target, options, tls)

        return cast("grpc.aio.Channel", self._secured(address, make, is_asyncio=True))

    def check(self, address: str) -> None:
        """Raise the errors that ``channel`` would."""
        self._parts_for(address)

    def _secured(self, address: str, make: Callable[[str, Any], Any], *, is_asyncio: bool) -> Any:
        token, tls = self._parts_for(address)
        target = parse_address(address).target
        if tls is None and token is None:
            return make(target, None)
        return SecuredChannel(
            lambda: make(target, tls and tls.credentials()),
            token.metadata if token else lambda: (),
            tls.refresh if tls else None,
            is_asyncio=is_asyncio,
        )

    def _parts_for(self, address: str) -> tuple[_Token | None, _Tls | _PinnedTls | None]:
        parsed = parse_address(address)
        if isinstance(parsed, UnixAddress):
            return None, None
        tls: _Tls | _PinnedTls | None = None
        if self.pin and not self.tls_ca:
            tls = _PinnedTls(self, find_pinned_ca(self.pin, parsed.host, parsed.port))
        elif self.tls_ca or self.tls_cert or self.tls_key:
            tls = _Tls(self)
        if not (self.token or self.token_file):
            return None, tls
        if tls is None and not parsed.is_loopback:
            _refuse_to_tell(address)
        token = _Token(self)
        token.metadata()  # raises before anything is sent
        return token, tls


NO_CREDENTIALS = Credentials()


class _Token:
    """The token of some credentials, reread when its file changes. Any thread may use it."""

    def __init__(self, credentials: Credentials) -> None:
        self._file = credentials.token_file
        self._read: tuple[object, Metadata] = (None, ())
        if credentials.token:
            self._read = None, _metadata_of(credentials.token)

    def metadata(self) -> Metadata:
        """Return the metadata for each request. Raises UnauthenticatedError.

        A file that can no longer be read, or is half written, changes nothing.
        """
        if not self._file:
            return self._read[1]
        read = self._read
        try:
            status = os.stat(self._file)
            signature = status.st_ino, status.st_size, status.st_mtime_ns
            if signature != read[0]:
                with open(self._file, encoding="utf-8") as file:
                    text = file.read(_LONGEST_TOKEN + 2).strip()
                self._read = read = signature, _metadata_of(text)
        except Exception as error:
            if not read[1]:
                why = (
                    error.strerror
                    if isinstance(error, OSError)
                    else getattr(error, "message", error)
                )
                _refuse_token(f"the token file {self._file} cannot be used: {why}")
        return read[1]


class _Tls:
    """The certificates of some credentials, reread when their files change."""

    def __init__(self, credentials: Credentials) -> None:
        """Read the files. Raises UnauthenticatedError."""
        self._ca, self._cert, self._key = (
            credentials.tls_ca,
            credentials.tls_cert,
            credentials.tls_key,
        )
        if not self._ca:
            _refuse_certificates("a client certificate is given, and no CA for the daemon's")
        if bool(self._cert) != bool(self._key):
            _refuse_certificates("of a client certificate and its key, one is missing")
        try:
            self._signature, self._read = self._read_in_time()
        except (OSError, ValueError) as error:
            _refuse_certificates(f"the certificates cannot be used: {error}")

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials in gRPC's form."""
        ca, key, cert = self._read
        return grpc.ssl_channel_credentials(ca, key, cert)

    def refresh(self) -> bool:
        """Reread the files if they have changed.

        Return whether that changed the certificates in force.

        Files that cannot be read, or do not match yet, change nothing.
        """
        try:
            if self._signatures() == self._signature:
                return False
            signature, read = self._read_files()
        except (OSError, ValueError):
            return False
        before, self._read = self._read, read
        self._signature = signature
        return before != read

    def _read_in_time(self) -> tuple[object, tuple[bytes, bytes | None, bytes | None]]:
        """Read the files; retry if they may be in the middle of being replaced."""
        for pause in _PAUSES:
            try:
                return self._read_files()
            except (ssl.SSLError, ValueError):  # two files that do not match, or half of one
                time.sleep(pause)
        return self._read_files()

    def _signatures(self) -> tuple[object, ...]:
        paths = filter(None, (self._ca, self._cert, self._key))
        found = [os.stat(path) for path in paths]
        return tuple((each.st_ino, each.st_size, each.st_mtime_ns) for each in found)

    def _read_files(self) -> tuple[object, tuple[bytes, bytes | None, bytes | None]]:
        before = self._signatures()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(self._ca)  # gRPC accepts anything, and fails later
        if self._cert:
            context.load_cert_chain(self._cert, self._key, password=lambda: "")
        ca, cert, key = (_read_bytes(path) for path in (self._ca, self._cert, self._key))
        if self._signatures() != before:
            raise ValueError("they are being written")
        return before, (ca or b"", key, cert)


def shown_ticket(ticket: str) -> str:
    """Return the authorization with a ticket for an interpreter; empty without one."""
    return f"Ticket {ticket}" if ticket else ""


class _PinnedTls:
    """The CA that a join token names, and the client's own certificate, if it has one."""

    def __init__(self, credentials: Credentials, ca: bytes) -> None:
        self._credentials = credentials
        self._ca = ca

    def credentials(self) -> grpc.ChannelCredentials:
        """Return the credentials in gRPC's form. Raises UnauthenticatedError."""
        try:
            own = (_read_bytes(self._credentials.tls_key), _read_bytes(self._credentials.tls_cert))
        except OSError as error:
            _refuse_certificates(f"the certificates cannot be used: {error}")
        return grpc.ssl_channel_credentials(self._ca, *own)

    def refresh(self) -> bool:
        """Return False: the CA is fixed."""
        return False


def _pin_in(path: PathLike) -> str:
    with contextlib.suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        return split_join_token(file.read(_LONGEST_TOKEN).strip())[0]
    return ""  # an unreadable file is reported when it is used


def _read_bytes(path: str) -> bytes | None:
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()


def _given_or_set(given: PathLike | None, variable: str) -> str:
    return os.fspath(given) if given is not None else os.environ.get(variable, "")


def _refuse_certificates(why: str) -> NoReturn:
    from opdispatch_wire.errors import UnauthenticatedError

    raise UnauthenticatedError(
        why,
        hint="see connect(tls_ca=..., tls_cert=..., tls_key=...) and "
        f"{TLS_CA_VARIABLE}, {TLS_CERT_VARIABLE}, {TLS_KEY_VARIABLE}",
    ) from None


def _metadata_of(token: str) -> Metadata:
    # The message contains nothing of it: even an invalid token may be a secret.
    if not _TOKEN.fullmatch(token) or len(token) > _LONGEST_TOKEN:
        _refuse_token("the token is none; expected one line of printable ASCII characters")
    return ((AUTHORIZATION, f"Bearer {split_join_token(token)[1]}"),)


def _refuse_token(why: str) -> NoReturn:
    from opdispatch_wire.errors import UnauthenticatedError

    raise UnauthenticatedError(
        why, hint=f"see --token-file, {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE}"
    ) from None


def _refuse_to_tell(address: str) -> NoReturn:
    from opdispatch_wire.addresses import UnsafeAddressError

    raise UnsafeAddressError(
        f"a token for {address} would be sent in clear, and could be overheard",
        hint=f"give the CA of the daemon's certificate, with connect(tls_ca=...) or "
        f"{TLS_CA_VARIABLE}, or reach the daemon over a unix socket that ssh forwards",
    )

"""Credentials of a client: a token, read again when its file changes.

Without the package ``opdispatch``, unless something is wrong: probes start again and again.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn, cast

import grpc

from opdispatch_wire.address_forms import UnixAddress, parse_address
from opdispatch_wire.asyncio_grpc import asyncio_channel

TOKEN_VARIABLE = "OPDISPATCH_TOKEN"
TOKEN_FILE_VARIABLE = "OPDISPATCH_TOKEN_FILE"

AUTHORIZATION = "authorization"
"""The metadata that has a token, after the word Bearer."""

_LONGEST_TOKEN = 4096
_TOKEN = re.compile(r"[\x21-\x7e]+")

Options = Sequence[tuple[str, int]]
Metadata = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Credentials:
    """Hold what a client shows to be let in. A secret is never in its text."""

    token: str = field(default="", repr=False)
    token_file: str = ""

    @classmethod
    def of(
        cls, token: str | None = None, token_file: str | os.PathLike[str] | None = None
    ) -> Credentials:
        """Return the credentials that are given, or those of the environment for what is not."""
        if token is None and token_file is None:
            token = os.environ.get(TOKEN_VARIABLE)
            token_file = os.environ.get(TOKEN_FILE_VARIABLE)
        if token:
            return cls(token=token)
        return cls(token_file=os.fspath(token_file) if token_file else "")

    def channel(self, address: str, options: Options) -> grpc.Channel:
        """Return a blocking channel to ``address``, over which they are shown.

        At a unix socket that is nothing: the system says who is at its other end. Raises
        UnauthenticatedError for a token that cannot be read, UnsafeAddressError for an address
        where it could be overheard, and AddressFormError.
        """
        return cast(
            "grpc.Channel",
            self._secured(address, lambda target: grpc.insecure_channel(target, options=options)),
        )

    def asyncio_channel(self, address: str, options: Options) -> grpc.aio.Channel:
        """Return a channel of the running event loop. As ``channel``."""
        return cast(
            "grpc.aio.Channel",
            self._secured(address, lambda target: asyncio_channel(target, options)),
        )

    def check(self, address: str) -> None:
        """Raise what ``channel`` would."""
        self._token_for(address)

    def _secured(self, address: str, make: Callable[[str], Any]) -> Any:
        token = self._token_for(address)
        channel = make(parse_address(address).target)
        return channel if token is None else SecuredChannel(channel, token.metadata)

    def _token_for(self, address: str) -> _Token | None:
        parsed = parse_address(address)
        if isinstance(parsed, UnixAddress) or not (self.token or self.token_file):
            return None
        if not parsed.is_loopback:
            _refuse_to_tell(address)
        token = _Token(self)
        token.metadata()  # raises before anything is sent
        return token


NO_CREDENTIALS = Credentials()


class _Token:
    """The token of some credentials, read again when its file changes. Any thread may ask."""

    def __init__(self, credentials: Credentials) -> None:
        self._file = credentials.token_file
        self._read: tuple[object, Metadata] = (None, ())
        if credentials.token:
            self._read = None, _metadata_of(credentials.token)

    def metadata(self) -> Metadata:
        """Return what goes with each request. Raises UnauthenticatedError.

        A file that cannot be read any more, or is half written, changes nothing.
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


class SecuredChannel:
    """A channel, blocking or of asyncio, whose requests all have the same metadata with them."""

    def __init__(self, channel: Any, metadata: Callable[[], Metadata]) -> None:
        self._channel = channel
        self._metadata = metadata

    def unary_unary(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return that of the channel."""
        return SecuredMethod(self._channel.unary_unary(*args, **options), self._metadata)

    def unary_stream(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return that of the channel."""
        return SecuredMethod(self._channel.unary_stream(*args, **options), self._metadata)

    def stream_unary(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return that of the channel."""
        return SecuredMethod(self._channel.stream_unary(*args, **options), self._metadata)

    def stream_stream(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return that of the channel."""
        return SecuredMethod(self._channel.stream_stream(*args, **options), self._metadata)

    def close(self, *args: Any) -> Any:
        """Close the channel; to be awaited for one of asyncio."""
        return self._channel.close(*args)

    def __enter__(self) -> SecuredChannel:
        return self

    def __exit__(self, *exc: object) -> None:
        self._channel.close()

    async def __aenter__(self) -> SecuredChannel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._channel.close()


class SecuredMethod:
    """One method of a SecuredChannel."""

    __slots__ = ("_metadata", "_method")

    def __init__(self, method: Any, metadata: Callable[[], Metadata]) -> None:
        self._method = method
        self._metadata = metadata

    def __call__(self, *args: Any, metadata: Metadata | None = None, **options: Any) -> Any:
        """Send a request."""
        return self._method(*args, metadata=(*(metadata or ()), *self._metadata()), **options)

    def future(self, *args: Any, metadata: Metadata | None = None, **options: Any) -> Any:
        """Send a request over a blocking channel without waiting."""
        return self._method.future(
            *args, metadata=(*(metadata or ()), *self._metadata()), **options
        )


def _metadata_of(token: str) -> Metadata:
    # The message has nothing of it: what is no token can be a secret all the same.
    if not _TOKEN.fullmatch(token) or len(token) > _LONGEST_TOKEN:
        _refuse_token("the token is none; expected one line of printable ASCII characters")
    return ((AUTHORIZATION, f"Bearer {token}"),)


def _refuse_token(why: str) -> NoReturn:
    from opdispatch_wire.errors import UnauthenticatedError

    raise UnauthenticatedError(
        why, hint=f"see --token-file, {TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE}"
    ) from None


def _refuse_to_tell(address: str) -> NoReturn:
    from opdispatch_wire.addresses import UnsafeAddressError

    raise UnsafeAddressError(
        f"a token for {address} would be sent in clear, and could be overheard",
        hint="reach the daemon over a unix socket that ssh forwards",
    )

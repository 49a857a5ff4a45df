"""A gRPC channel that sends a token with each request and follows changes of its certificates.

Note [Renewing a channel]
    A gRPC channel keeps the certificates that it was created with. So when the files change, new
    requests go over a new channel. Requests in flight stay on the old one, which is closed once
    the last of them has ended.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

Metadata = tuple[tuple[str, str], ...]

FILE_CHECK_SECONDS = 1.0
"""Shortest interval between checks of the files, in seconds."""


class _Generation:
    """One gRPC channel, and the number of requests in flight on it."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.under_way = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Count a request as in flight."""
        with self._lock:
            self.under_way += 1

    def end(self, call: object = None) -> None:
        """Count a request as ended. gRPC calls this from a thread of its own."""
        with self._lock:
            self.under_way -= 1


class SecuredChannel:
    """A channel, blocking or asyncio, with gRPC's interface. See Note [Renewing a channel].

    ``make`` creates a gRPC channel. ``metadata`` returns the metadata to add to each request.
    ``has_changed`` returns whether a new channel is needed; None if that is never the case.
    Thread-safe, as gRPC's channels are.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        metadata: Callable[[], Metadata],
        has_changed: Callable[[], bool] | None = None,
        *,
        is_asyncio: bool = False,
    ) -> None:
        self._make = make
        self.metadata = metadata
        self._has_changed = has_changed
        self._is_asyncio = is_asyncio
        self._renewing = threading.Lock()
        self._look_at = time.monotonic() + FILE_CHECK_SECONDS
        self._old: list[_Generation] = []
        self._current = _Generation(make())

    @property
    def is_renewed(self) -> bool:
        """Whether the gRPC channel may be replaced by a new one."""
        return self._has_changed is not None

    def current(self) -> _Generation:
        """Return the channel for the next request, after checking for changes if it is time."""
        if self._has_changed is not None and time.monotonic() >= self._look_at:
            self._look(self._has_changed)
        return self._current

    def _look(self, has_changed: Callable[[], bool]) -> None:
        if not self._renewing.acquire(blocking=False):
            return  # another thread is checking
        try:
            # Idle channels are taken before the new one is made: a request that has just got the
            # current channel may not have been counted yet, and has until the next check.
            self._look_at = time.monotonic() + FILE_CHECK_SECONDS
            idle = [each for each in self._old if not each.under_way]
            self._old = [each for each in self._old if each.under_way]
            if has_changed():
                self._old.append(self._current)
                self._current = _Generation(self._make())
        finally:
            self._renewing.release()
        for each in idle:
            closing = each.channel.close()
            if self._is_asyncio:
                asyncio.ensure_future(closing)  # noqa: RUF006  no request is left to wait for

    def unary_unary(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return a method, as gRPC's channel does."""
        return SecuredMethod(self, "unary_unary", args, options)

    def unary_stream(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return a method, as gRPC's channel does."""
        return SecuredMethod(self, "unary_stream", args, options)

    def stream_unary(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return a method, as gRPC's channel does."""
        return SecuredMethod(self, "stream_unary", args, options)

    def stream_stream(self, *args: Any, **options: Any) -> SecuredMethod:
        """Return a method, as gRPC's channel does."""
        return SecuredMethod(self, "stream_stream", args, options)

    def close(self, *args: Any) -> Any:
        """Close the channel. Returns a coroutine to await if it is asyncio's."""
        if self._is_asyncio:
            return self._close_all(*args)
        for each in (*self._old, self._current):
            each.channel.close()
        return None

    async def _close_all(self, *args: Any) -> None:
        for each in (*self._old, self._current):
            await each.channel.close(*args)

    def __enter__(self) -> SecuredChannel:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    async def __aenter__(self) -> SecuredChannel:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self._close_all()


class SecuredMethod:
    """One RPC method of a SecuredChannel, bound to gRPC's current channel at each request."""

    __slots__ = ("_args", "_kind", "_made", "_options", "_owner")

    def __init__(
        self, owner: SecuredChannel, kind: str, args: tuple[Any, ...], options: dict[str, Any]
    ) -> None:
        self._owner = owner
        self._kind = kind
        self._args = args
        self._options = options
        self._made: tuple[_Generation | None, Any] = (None, None)

    def __call__(self, *args: Any, metadata: Metadata | None = None, **options: Any) -> Any:
        """Send a request, as gRPC's multi-callables do."""
        generation, method = self._method()
        metadata = (*(metadata or ()), *self._owner.metadata())
        if not self._owner.is_renewed:
            return method(*args, metadata=metadata, **options)
        generation.begin()
        call = None
        try:
            call = method(*args, metadata=metadata, **options)
        finally:  # a blocking unary call has ended: it returned its reply, not a call object
            if not hasattr(call, "add_done_callback"):
                generation.end()
        if hasattr(call, "add_done_callback"):
            call.add_done_callback(generation.end)
        return call

    def future(self, *args: Any, metadata: Metadata | None = None, **options: Any) -> Any:
        """Send a request over a blocking channel, and return its future."""
        generation, method = self._method()
        metadata = (*(metadata or ()), *self._owner.metadata())
        call = method.future(*args, metadata=metadata, **options)
        if self._owner.is_renewed:
            generation.begin()
            call.add_done_callback(generation.end)
        return call

    def _method(self) -> tuple[_Generation, Any]:
        current = self._owner.current()
        generation, method = self._made
        if generation is not current:
            # Threads may race here, which is harmless: both make an equivalent method.
            method = getattr(current.channel, self._kind)(*self._args, **self._options)
            self._made = current, method
        return current, method

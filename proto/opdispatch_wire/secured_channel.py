"""A channel that shows a token with each request, and is renewed when its certificates change.

Note [Renewing a channel]
    gRPC's channels keep the certificates that they were made with. So when the files change,
    requests go over a new channel from then on. What is under way on the old one goes on there:
    it is closed when the last of that has ended.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

Metadata = tuple[tuple[str, str], ...]

LOOK_EVERY = 1.0
"""How often the files are looked at, at most, in seconds."""


class _Generation:
    """One of gRPC's channels, and how many requests are under way on it."""

    def __init__(self, channel: Any) -> None:
        self.channel = channel
        self.under_way = 0
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Count a request."""
        with self._lock:
            self.under_way += 1

    def end(self, call: object = None) -> None:
        """Count it no more."""
        with self._lock:
            self.under_way -= 1


class SecuredChannel:
    """A channel, blocking or of asyncio. See Note [Renewing a channel].

    ``make`` makes gRPC's; ``metadata`` returns what goes with each request; ``has_changed`` says
    whether another one has to be made, and is None where that never has to.
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
        self._look_at = time.monotonic() + LOOK_EVERY
        self._old: list[_Generation] = []
        self._current = _Generation(make())

    @property
    def is_renewed(self) -> bool:
        """Whether its channel is ever replaced by another one."""
        return self._has_changed is not None

    def current(self) -> _Generation:
        """Return the channel for the next request."""
        if self._has_changed is not None and time.monotonic() >= self._look_at:
            self._look(self._has_changed)
        return self._current

    def _look(self, has_changed: Callable[[], bool]) -> None:
        if not self._renewing.acquire(blocking=False):
            return  # another thread does
        try:
            self._look_at = time.monotonic() + LOOK_EVERY
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
                asyncio.ensure_future(closing)  # noqa: RUF006  which has nothing to wait for

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
        """Close the channel; to be awaited for one of asyncio."""
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
    """One method of a SecuredChannel."""

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
        """Send a request."""
        generation, method = self._method()
        metadata = (*(metadata or ()), *self._owner.metadata())
        if not self._owner.is_renewed:
            return method(*args, metadata=metadata, **options)
        generation.begin()
        call = None
        try:
            call = method(*args, metadata=metadata, **options)
        finally:  # a blocking method of one reply has returned that
            if not hasattr(call, "add_done_callback"):
                generation.end()
        if hasattr(call, "add_done_callback"):
            call.add_done_callback(generation.end)
        return call

    def future(self, *args: Any, metadata: Metadata | None = None, **options: Any) -> Any:
        """Send a request over a blocking channel without waiting."""
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
            # Threads may race to make it; any one will do.
            method = getattr(current.channel, self._kind)(*self._args, **self._options)
            self._made = current, method
        return current, method

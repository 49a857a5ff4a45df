"""gRPC's asyncio servers and channels, with a fix for events that stall in a busy event loop.

gRPC has one thread that collects the events for all loops of a process. For each event it writes a
byte to a socket, which wakes a loop up; the loop then takes *all* pending events, but reads *one*
byte. The bytes of the other events remain. When some 280 of them fill the socket, that thread
blocks in its write until three quarters have been read, one in each iteration of the loop: if an
iteration takes 7 ms, no event arrives from any peer for one and a half seconds. So the socket is
made non-blocking here: if a write fails, there are enough bytes to wake the loop.

Source: ``PollerCompletionQueue`` in gRPC's ``aio/completion_queue.pyx.pxi``.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import grpc


def asyncio_server(
    options: Sequence[tuple[str, int]],
    interceptors: Sequence[grpc.aio.ServerInterceptor] = (),
) -> grpc.aio.Server:
    """Return a server for the running event loop."""
    with _writes_of_wakeups_not_blocking():
        return grpc.aio.server(options=options, interceptors=interceptors)


async def start_server(server: grpc.aio.Server) -> None:
    """Start a server. It starts even if the caller is cancelled meanwhile, so that it can stop.

    gRPC's main loop of a server whose start was cancelled ends with an error.
    """
    await asyncio.shield(server.start())


def asyncio_channel(
    target: str,
    options: Sequence[tuple[str, int]],
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.aio.Channel:
    """Return a channel to ``target`` for the running event loop."""
    with _writes_of_wakeups_not_blocking():
        if credentials is not None:
            return grpc.aio.secure_channel(target, credentials, options=options)
        return grpc.aio.insecure_channel(target, options=options)


@contextmanager
def _writes_of_wakeups_not_blocking() -> Iterator[None]:
    """Make wakeup writes non-blocking: gRPC creates its sockets with the first server or channel.

    They stay blocking if another library created the first server or channel.
    """
    ours = threading.get_ident()

    def socketpair(*args: Any, **kwargs: Any) -> tuple[socket.socket, socket.socket]:
        read_end, write_end = plain(*args, **kwargs)
        if threading.get_ident() == ours:
            write_end.setblocking(False)
        return read_end, write_end

    with _replacing:
        plain = socket.socketpair
        socket.socketpair = socketpair
        try:
            yield
        finally:
            socket.socketpair = plain


_replacing = threading.Lock()
"""Held for the microseconds during which ``socket.socketpair`` is replaced."""

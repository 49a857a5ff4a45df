"""Notifications to a service manager, by systemd's protocol ``sd_notify``.

Each message is a datagram to the socket that ``NOTIFY_SOCKET`` names. Container runtimes and
supervisors other than systemd speak it, too. Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time

from opdispatch_server.log_fields import Event, fields

LOG = logging.getLogger("opdispatch.daemon")


class ServiceManager:
    """The service manager that started this process; without one, every method does nothing."""

    def __init__(self) -> None:
        # Removed from the environment: interpreters, and processes of libraries, are not the
        # service.
        self._address = os.environ.pop("NOTIFY_SOCKET", "")
        watched = os.environ.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        microseconds = os.environ.pop("WATCHDOG_USEC", "")
        self._watchdog = int(microseconds) / 1e6 if watched and microseconds.isdecimal() else 0.0

    def ready(self, status: str) -> None:
        """Report that the service has started, or has reread its configuration."""
        self._send("READY=1", f"STATUS={status}")

    def reloading(self) -> None:
        """Report that the configuration is being reread; ``ready`` ends that."""
        # systemd compares this monotonic time with that of its reload request.
        self._send("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        """Report that the service is shutting down."""
        self._send("STOPPING=1")

    async def keep_alive(self) -> None:
        """Notify the watchdog that the event loop runs, twice per interval, until cancelled."""
        while self._watchdog:
            self._send("WATCHDOG=1")
            await asyncio.sleep(self._watchdog / 2)

    def _send(self, *lines: str) -> None:
        if not self._address:
            return
        # "@" stands for the zero byte of an abstract address.
        address = self._address.replace("@", "\0", 1) if self._address[0] == "@" else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
                sender.setblocking(False)  # a manager that hangs must not block the daemon
                sender.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            LOG.warning(
                "the service manager at %s was not told: %s",
                self._address,
                error,
                extra=fields(Event.SERVICE_MANAGER_LOST),
            )

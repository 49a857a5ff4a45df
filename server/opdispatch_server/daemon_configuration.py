"""The configuration of a daemon."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_DEFAULT
from opdispatch_wire.process_memory_limit import memory_limit

if TYPE_CHECKING:
    from opdispatch_wire.library_source import LoadSource

LOAD_TIMEOUT_DEFAULT = 60.0
HEARTBEAT_DEFAULT = 0.5
LOCK_TIMEOUT_DEFAULT = 10.0
QUEUE_DEFAULT = 1024
REMOTE_VALUES_DEFAULT = 10_000
REMOTE_BYTES_DEFAULT = 4 << 30
LIBRARY_BYTES_DEFAULT = 16 << 30
LIBRARY_DISK_BYTES_DEFAULT = 64 << 30
# The bytes that may wait for one interpreter, as a number of messages of the largest size.
MESSAGES_PER_QUEUE = 4
CALL_BYTES_AT_MOST = 8 * 1024**3


@cache
def installed_version() -> str:
    """Return the version of opdispatch, which is in a file that takes milliseconds to parse."""
    return version("opdispatch")


class DaemonConfiguration(NamedTuple):
    """One daemon's settings.

    ``workers`` are the devices of its interpreters, see ``worker_plan``. ``libraries`` are loaded
    at the start. ``load_timeout``, ``heartbeat``, ``lock_timeout`` and ``kernel_timeout`` are in
    seconds.

    ``queue`` is how many calls may wait for one interpreter; ``max_call_bytes``, the most bytes of
    large tensors in one stream, or in one call on a local lane, None: see ``default_call_bytes``;
    ``remote_values`` and ``remote_bytes``, how much one client may keep in interpreters;
    ``max_library_bytes``, the largest upload, and ``library_disk_bytes``, the most disk space of
    all uploads and the folders that they are unpacked to; ``direct_ports``, the first and the last
    port on which interpreters take client calls, 0 for any, None for none; ``tokens``, the file of
    the tokens that callers over TCP need, None if they need none; ``http``, the address of the page
    and of metrics, None for neither, and ``metrics_compat``, a product whose names metrics also
    get; ``slow_call``, after how many seconds a call is logged, None for never; ``tracing``, the
    function that sets a tracer provider, or None; ``tls_cert`` and ``tls_key``, the certificate of
    TCP ports and its key, None without TLS, and ``tls_client_ca`` the CA of the certificates that
    clients need, None if they need none; ``allow_users``, other users of the machine who may use
    unix sockets, see ``parse_users``; ``quotas``, the limits for one identity, in the order of
    ``QuotaLimits``, None for no limit; ``take_over``, whether to replace the daemon that uses the
    state folder.
    """

    listen: tuple[str, ...]
    workers: tuple[str, ...]
    state: Path
    libraries: tuple[LoadSource, ...] = ()
    max_message_bytes: int = MAX_MESSAGE_BYTES_DEFAULT
    max_call_bytes: int | None = None
    load_timeout: float = LOAD_TIMEOUT_DEFAULT
    heartbeat: float = HEARTBEAT_DEFAULT
    lock_timeout: float = LOCK_TIMEOUT_DEFAULT
    quarantine_after: int | None = None
    queue: int = QUEUE_DEFAULT
    kernel_timeout: float | None = None
    remote_values: int = REMOTE_VALUES_DEFAULT
    remote_bytes: int = REMOTE_BYTES_DEFAULT
    max_library_bytes: int = LIBRARY_BYTES_DEFAULT
    library_disk_bytes: int = LIBRARY_DISK_BYTES_DEFAULT
    insecure: bool = False
    direct_ports: tuple[int, int] | None = (0, 0)
    log_level: str = "info"
    tokens: Path | None = None
    http: str | None = None
    metrics_compat: str | None = None
    slow_call: float | None = None
    tracing: str | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_client_ca: Path | None = None
    allow_users: tuple[str, ...] = ()
    quotas: tuple[int | None, ...] = ()
    take_over: bool = False


CHANGED_WHILE_RUNNING = frozenset(
    ("log_level", "remote_values", "remote_bytes", "max_library_bytes", "library_disk_bytes")
)
"""The settings that a running daemon adopts when it rereads its configuration."""


def default_state_folder() -> Path:
    """Return ``$XDG_STATE_HOME/opdispatch``, or the standard's default for it."""
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return home / "opdispatch"


def default_call_bytes() -> int:
    """Return 8 GiB, or a quarter of the memory available to the daemon if that is less."""
    return min(CALL_BYTES_AT_MOST, memory_limit() // 4)


def default_worker_count() -> int:
    """Return two, or one on a machine with a single core."""
    return min(2, os.cpu_count() or 1)

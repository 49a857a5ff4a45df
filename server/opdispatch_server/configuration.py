"""The configuration of a daemon."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from opdispatch_wire.channel import MAX_MESSAGE_BYTES_DEFAULT
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
# The bytes that may wait for one interpreter, in messages of the largest size.
MESSAGES_PER_QUEUE = 4
CALL_BYTES_AT_MOST = 8 * 1024**3


class DaemonConfiguration(NamedTuple):
    """One daemon's settings.

    ``workers`` are the devices of its interpreters, see ``worker_plan``. ``libraries`` are loaded
    at the start. ``load_timeout``, ``heartbeat``, ``lock_timeout`` and ``kernel_timeout`` are in
    seconds.

    ``queue`` is how many calls may wait for one interpreter; ``max_call_bytes``, what the large
    tensors of one stream, or of one call on a local lane, may have together, None: see
    ``default_call_bytes``;
    ``remote_values`` and ``remote_bytes`` are what one client may keep in interpreters;
    ``max_library_bytes``, the largest upload, and ``library_disk_bytes``, what all of them may take
    on disk, with the folders that they are unpacked to;
    ``direct_ports``, the first and the last port on which interpreters take calls of clients, 0 for
    any, None if on none;
    ``tokens``, the file of the tokens that those who come over TCP need, None if they need none;
    ``http``, the address of the page and of metrics, None if there is none, and
    ``metrics_compat``, what else these are named after; ``slow_call``, after how many seconds a
    call is logged, None for never; ``tracing``, the function that sets a tracer provider, None if
    there is none;
    ``tls_cert`` and ``tls_key``, the certificate of TCP ports with its key, None if these are
    without TLS, and ``tls_client_ca`` the CA of the certificates that clients need, None if none;
    ``allow_users``, other users of the machine who may use unix sockets, see ``parse_users``;
    ``quotas``, how much one identity may use, as ``QuotaLimits`` has it, None for any number;
    ``take_over``, whether to take the place of the daemon that uses the state folder.
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
"""The settings that a daemon takes over when its configuration is read again."""


def default_state_folder() -> Path:
    """Return ``$XDG_STATE_HOME/opdispatch``, or the standard's default for it."""
    base = os.environ.get("XDG_STATE_HOME", "")
    home = Path(base) if Path(base).is_absolute() else Path.home() / ".local" / "state"
    return home / "opdispatch"


def default_call_bytes() -> int:
    """Return 8 GiB, or a quarter of the memory that the daemon may have where that is less."""
    return min(CALL_BYTES_AT_MOST, memory_limit() // 4)


def default_worker_count() -> int:
    """Return two, or one on a machine with a single core."""
    return min(2, os.cpu_count() or 1)

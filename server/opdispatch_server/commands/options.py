"""The options of ``opdispatch serve`` and ``opdispatch worker``, each with its help."""

# No ``from __future__ import annotations``: Typer reads annotations as they are.
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from opdispatch_server.commands.configuration_file import use_configuration_file
from opdispatch_server.daemon.processes.worker_plan import parse_workers
from opdispatch_server.logs import FORMATS, LEVELS
from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_HIGHEST

ConfigurationFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="OPDISPATCH_CONFIG",
        metavar="FILE",
        dir_okay=False,
        help="The configuration file, as with --config of the command itself.",
        show_default=False,
    ),
]


def _one_of(choices: Sequence[str]) -> Callable[[str | None], str | None]:
    """Return a check that an option's value is one of ``choices``, or None."""

    def check(value: str | None) -> str | None:
        if value is not None and value not in choices:
            raise typer.BadParameter(f"expected one of {', '.join(choices)}")
        return value

    return check


def _check_workers(text: str | None) -> str | None:
    try:
        parse_workers(text or "0")
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    return text


def parse_ports(text: str) -> tuple[int, int] | None:
    """Return the bounds of ``FIRST-LAST``; (0, 0) for ``any``, None for ``none``."""
    if text in ("any", "none"):
        return (0, 0) if text == "any" else None
    first, dash, last = text.partition("-")
    if dash and first.isdecimal() and last.isdecimal() and 0 < int(first) <= int(last) < 65536:
        return int(first), int(last)
    raise typer.BadParameter(f"{text!r} is not a range of ports; expected FIRST-LAST, any or none")


def _check_ports(text: str) -> str:
    parse_ports(text)
    return text


Config = Annotated[
    Path | None,
    typer.Option(
        "--config",
        envvar="OPDISPATCH_CONFIG",
        metavar="FILE",
        dir_okay=False,
        is_eager=True,  # other options take their defaults from it
        callback=use_configuration_file,
        help="A TOML file with a table of options for each of `serve` and `worker`. "
        "Default: $XDG_CONFIG_HOME/opdispatch/config.toml, else ~/.config/opdispatch/config.toml, "
        "if there is one.",
        show_default=False,
    ),
]
MaxMessageBytes = Annotated[
    int,
    typer.Option(
        envvar="OPDISPATCH_MAX_MESSAGE_BYTES",
        min=1024,
        max=MAX_MESSAGE_BYTES_HIGHEST,
        metavar="N",
        help="The largest message, arguments and results included.",
    ),
]
LogLevel = Annotated[
    str,
    typer.Option(
        envvar="OPDISPATCH_LOG_LEVEL",
        callback=_one_of(LEVELS),
        metavar="LEVEL",
        help=f"The lowest level of messages to log on stderr: {', '.join(LEVELS)}.",
    ),
]
LogFormat = Annotated[
    str,
    typer.Option(
        envvar="OPDISPATCH_LOG_FORMAT",
        callback=_one_of(FORMATS),
        metavar="FORMAT",
        help="The format of log messages: human, json, or auto: human on a terminal, json "
        "otherwise.",
    ),
]
TakeOver = Annotated[
    bool,
    typer.Option(
        "--take-over",
        envvar="OPDISPATCH_TAKE_OVER",
        help="Take over from the daemon that uses the state folder, if there is one: its "
        "addresses, journal and libraries. It finishes its calls and ends; no call fails.",
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="OPDISPATCH_INSECURE",
        help="Allow addresses that other machines can reach. Any client of the daemon can run "
        "code on this machine.",
    ),
]
Http = Annotated[
    str | None,
    typer.Option(
        envvar="OPDISPATCH_HTTP",
        metavar="HOST:PORT",
        help="Serve Prometheus metrics (/metrics), probes (/livez, /readyz) and a page about the "
        "daemon over HTTP, read-only. Port 0: any free port.",
        show_default=False,
    ),
]
MetricsCompat = Annotated[
    str | None,
    typer.Option(
        envvar="OPDISPATCH_METRICS_COMPAT",
        callback=_one_of(("triton",)),
        metavar="NAME",
        help="triton: also serve the nv_inference_* metrics of Triton Inference Server.",
        show_default=False,
    ),
]
Tracing = Annotated[
    str | None,
    typer.Option(
        envvar="OPDISPATCH_TRACING",
        metavar="MODULE:FUNCTION",
        help="Create OpenTelemetry spans for calls. The daemon and each interpreter call this "
        "function with their name; it must set a tracer provider.",
        show_default=False,
    ),
]
SlowCall = Annotated[
    float | None,
    typer.Option(
        envvar="OPDISPATCH_SLOW_CALL",
        min=1e-6,
        metavar="SECONDS",
        help="Log each call that takes longer than this, including the time in queues. Default: "
        "none.",
        show_default=False,
    ),
]
Listen = Annotated[
    list[str] | None,
    typer.Option(
        "--listen",
        "--address",
        envvar="OPDISPATCH_LISTEN",
        metavar="ADDR",
        help="Where to listen: unix:///PATH or HOST:PORT (port 0: any free port). Repeat it "
        "for several. Default: OPDISPATCH_ADDRESS, else a socket in your runtime folder.",
        show_default=False,
    ),
]
Workers = Annotated[
    str | None,
    typer.Option(
        envvar="OPDISPATCH_WORKERS",
        callback=_check_workers,
        metavar="N",
        help="How many worker interpreters to run, each with all devices that it finds; or a list: "
        "cpu:2,cuda:0 runs two without a GPU and one with the first GPU. Default: 2, or 1 on a "
        "single core.",
        show_default=False,
    ),
]
Libraries = Annotated[
    list[str] | None,
    typer.Option(
        envvar="OPDISPATCH_LIBRARY",
        metavar="FILE_OR_MODULE",
        help="A kernel library to load at the start, as for `opdispatch load`. Repeat it for "
        "several.",
        show_default=False,
    ),
]
State = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_STATE",
        metavar="DIR",
        file_okay=False,
        help="The folder for the journal and uploaded libraries. Default: "
        "$XDG_STATE_HOME/opdispatch, else ~/.local/state/opdispatch.",
        show_default=False,
    ),
]
MaxCallBytes = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_MAX_CALL_BYTES",
        min=1024,
        metavar="N",
        help="The most bytes of large tensors in one call on a local lane, and in all calls of one "
        "gRPC stream together; all streams together may have twice as much. Default: 8 GiB, or "
        "a quarter of the machine's memory if that is less.",
        show_default=False,
    ),
]
LoadTimeout = Annotated[
    float,
    typer.Option(
        envvar="OPDISPATCH_LOAD_TIMEOUT",
        min=0.1,
        metavar="SECONDS",
        help="How long the import of a library may take before its interpreter is replaced.",
    ),
]
Heartbeat = Annotated[
    float,
    typer.Option(
        envvar="OPDISPATCH_HEARTBEAT",
        min=0.05,
        max=3600.0,
        metavar="SECONDS",
        help="The interval of interpreters' heartbeats. An interpreter that misses three in a row "
        "counts as busy if it is running a call; otherwise it is replaced.",
    ),
]
LockTimeout = Annotated[
    float,
    typer.Option(
        envvar="OPDISPATCH_LOCK_TIMEOUT",
        min=0.1,
        metavar="SECONDS",
        help="How long a kernel may hold Python's interpreter lock before its interpreter is "
        "replaced.",
    ),
]
QuarantineAfter = Annotated[
    int | None,
    typer.Option(
        envvar="OPDISPATCH_QUARANTINE_AFTER",
        min=0,
        metavar="N",
        help="Quarantine an interpreter that dies N times in a row soon after its start, unless a "
        "library is to blame: it is not restarted until `opdispatch revive`. 0: never. Default: "
        "5 for an interpreter that has never been ready, and no limit for others.",
        show_default=False,
    ),
]
Queue = Annotated[
    int,
    typer.Option(
        envvar="OPDISPATCH_QUEUE",
        min=0,
        max=1_000_000,
        metavar="N",
        help="How many calls may wait for one interpreter. Further calls are refused with a hint "
        "when to retry.",
    ),
]
KernelTimeout = Annotated[
    float | None,
    typer.Option(
        envvar="OPDISPATCH_KERNEL_TIMEOUT",
        min=0.1,
        metavar="SECONDS",
        help="How long a kernel may run before its interpreter is replaced. Default: no limit.",
        show_default=False,
    ),
]
RemoteValues = Annotated[
    int,
    typer.Option(
        envvar="OPDISPATCH_REMOTE_VALUES",
        min=0,
        max=10_000_000,
        metavar="N",
        help="How many remote values one client may keep in interpreters.",
    ),
]
RemoteBytes = Annotated[
    int,
    typer.Option(
        envvar="OPDISPATCH_REMOTE_BYTES",
        min=0,
        metavar="N",
        help="How many bytes the remote values of one client may have together.",
    ),
]
MaxLibraryBytes = Annotated[
    int,
    typer.Option(
        envvar="OPDISPATCH_MAX_LIBRARY_BYTES",
        min=1024,
        metavar="N",
        help="The largest library that can be uploaded, in bytes.",
    ),
]
LibraryDiskBytes = Annotated[
    int,
    typer.Option(
        envvar="OPDISPATCH_LIBRARY_DISK_BYTES",
        min=1024,
        metavar="N",
        help="How many bytes all uploaded libraries, with their unpacked copies, may take in the "
        "state folder.",
    ),
]
DirectPorts = Annotated[
    str,
    typer.Option(
        envvar="OPDISPATCH_DIRECT_PORTS",
        callback=_check_ports,
        metavar="FIRST-LAST",
        help="The TCP ports on which interpreters accept direct calls of clients: FIRST-LAST, "
        "any or none. They listen on the same hosts as the daemon.",
    ),
]
DaemonAddress = Annotated[
    str | None,
    typer.Option(
        "--daemon",
        "--address",
        envvar="OPDISPATCH_ADDRESS",
        metavar="ADDR",
        help="The daemon to work for. Default: a socket in your runtime folder.",
        show_default=False,
    ),
]
WorkerName = Annotated[
    str,
    typer.Option(
        envvar="OPDISPATCH_WORKER_NAME",
        metavar="NAME",
        help="The interpreter's name. Default: the daemon chooses one.",
    ),
]
WorkerListen = Annotated[
    str,
    typer.Option(
        envvar="OPDISPATCH_WORKER_LISTEN",
        metavar="ADDR",
        help="The address at which a daemon on another machine reaches this interpreter: "
        "HOST:PORT. Default: a private unix socket.",
    ),
]
Reconnect = Annotated[
    float,
    typer.Option(
        envvar="OPDISPATCH_RECONNECT",
        min=0.0,
        metavar="SECONDS",
        help="How long to look for a daemon whose connection is lost; 0: do not look for it.",
    ),
]
Cache = Annotated[
    Path | None,
    typer.Option(
        envvar="OPDISPATCH_CACHE",
        metavar="DIR",
        file_okay=False,
        help="Where to keep libraries from a daemon on another machine. Default: "
        "$XDG_CACHE_HOME/opdispatch/libraries, else ~/.cache/opdispatch/libraries.",
        show_default=False,
    ),
]

"""``opdispatch top``: the activity of the daemon, on one screen."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import termios
import threading
import tty
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.listing_watch import captured, screen

if TYPE_CHECKING:
    from opdispatch_client.blocking import Session
    from opdispatch_client.listings import (
        Activity,
        CallActivity,
        Interpreter,
        InterpreterActivity,
        InterpreterDeath,
        Library,
        RegistryChange,
    )

PANEL = "Interpreters"

Once = Annotated[
    bool,
    typer.Option("--once", help="Print the rates of one second, and exit.", show_default=False),
]


def top(settings: Settings, once: Once = False) -> None:
    """Show libraries, interpreters with what they run, queues, calls and deaths, live.

    On a terminal, q ends it. Elsewhere, a report is printed every second.
    """
    with settings.connect() as session, contextlib.closing(_reports(session)) as reports:

        def show(report: _Report) -> None:
            report.print(json=settings.json)

        if once or not sys.stdout.isatty():
            for report in reports:
                show(report)
                sys.stdout.flush()
                if once:
                    break
            return
        with _ends_by_key("q"), screen() as draw:
            for report in reports:
                draw(captured(show, report))


def _reports(session: Session) -> Generator[_Report, None]:
    """Yield the daemon's state every second, once there are rates."""
    report = _Report()
    with contextlib.closing(session.watch_registry(activity=True)) as changes:
        for change in changes:
            report.take(change)
            if report.activity is not None and report.activity.interval:
                yield report


@contextlib.contextmanager
def _ends_by_key(key: str) -> Iterator[None]:
    """Let a key end the block silently, as Ctrl-C would; keys are not echoed meanwhile."""
    if not sys.stdin.isatty():
        yield
        return
    keyboard, was_pressed = sys.stdin.fileno(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None, "the main thread has begun"
    stop, stopping = os.pipe()

    def read_keys() -> None:
        while keyboard in select.select([keyboard, stop], [], [])[0]:
            pressed = os.read(keyboard, 1)
            if pressed in (b"", key.encode(), key.upper().encode()):
                was_pressed.set()
                # Only a signal interrupts the main thread while it waits for a lock.
                signal.pthread_kill(main, signal.SIGINT)
                return

    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)
    thread = threading.Thread(target=read_keys, name="keys", daemon=True)
    thread.start()
    try:
        yield
    except KeyboardInterrupt:
        if not was_pressed.is_set():
            raise
    finally:
        os.close(stopping)  # makes the other end readable
        thread.join()
        os.close(stop)
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


class _Report:
    """The state of a daemon, updated by changes of its registry."""

    def __init__(self) -> None:
        self.epoch = 0
        self.operators: set[str] = set()
        self.libraries: dict[tuple[str, int], Library] = {}
        self.interpreters: dict[str, Interpreter] = {}
        self.activity: Activity | None = None

    def take(self, change: RegistryChange) -> None:
        """Apply a change."""
        self.epoch = change.epoch
        if change.whole:
            self.operators.clear()
        self.operators.update(each.name for each in change.operators)
        self.operators.difference_update(change.operators_gone)
        self.libraries.update({(each.name, each.version): each for each in change.libraries})
        for library in change.libraries_gone:
            self.libraries.pop(library, None)
        self.interpreters.update({each.name: each for each in change.interpreters})
        for interpreter in change.interpreters_gone:
            self.interpreters.pop(interpreter, None)
        self.activity = change.activity or self.activity

    def print(self, *, json: bool) -> None:
        """Print the whole report."""
        from opdispatch_client.cli.output import print_json, print_lines, print_table

        activity = self.activity
        assert activity is not None, "reports without are not shown"
        libraries = [each for _, each in sorted(self.libraries.items())]
        if json:
            data: dict[str, Any] = {
                "epoch": self.epoch,
                "operators": len(self.operators),
                "libraries": libraries,
                "interpreters": [each for _, each in sorted(self.interpreters.items())],
                "activity": activity,
            }
            print_json(data, indent=None)
            return
        print_lines([self._headline(activity), ""])
        print_table(_INTERPRETERS, [self._interpreter(each) for each in activity.interpreters])
        print_lines([""])
        print_table(_LIBRARIES, map(_library, libraries))
        print_lines([""])
        print_table(_CALLS, (_calls(each, activity.interval) for each in activity.calls))
        if activity.clients:
            print_lines([""])
            rows = ((name, _rate(calls, activity.interval)) for name, calls in activity.clients)
            print_table(("client", "calls/s"), rows)
        if activity.deaths:
            print_lines([""])
            print_table(_DEATHS, map(_death, activity.deaths))

    def _headline(self, activity: Activity) -> str:
        total, so_far = activity.total, activity.since_start
        failed = total.failed + total.died
        return (
            f"{'serving' if activity.ready else 'not serving'}; "
            f"{len(self.operators)} operators, epoch {self.epoch}; "
            f"{_rate(total.count, activity.interval)} calls/s, "
            f"{_rate(failed, activity.interval)} failed/s; since the start {so_far.count} calls, "
            f"{so_far.failed} failed, {so_far.died} cut off"
        )

    def _interpreter(self, doing: InterpreterActivity) -> tuple[str, ...]:
        from opdispatch_client.cli.output import format_size

        about = self.interpreters.get(doing.name)
        return (
            doing.name,
            f"{about.state}: {about.trouble}"
            if about and about.trouble
            else about.state
            if about
            else "",
            ", ".join(doing.running),
            str(doing.calls_in_flight),
            str(doing.calls_queued),
            format_size(doing.bytes_queued) if doing.bytes_queued else "",
            str(doing.calls_total),
            str(about.restarts) if about and about.restarts else "",
            ", ".join(about.libraries) if about else "",
        )


_INTERPRETERS = (
    *("interpreter", "state", "runs", "in flight", "queued", "queued bytes", "calls", "restarts"),
    "libraries",
)
_LIBRARIES = ("library", "version", "state", "operators", "interpreters", "trouble")
_CALLS = (
    *("operator", "key", "library", "calls/s", "failed/s"),
    *("mean run", "99 % run", "mean wait", "99 % wait"),
)
_DEATHS = ("died at", "interpreter", "why", "was running")


def _library(library: Library) -> tuple[str, ...]:
    return (
        library.name,
        str(library.version),
        library.state,
        str(len(library.operators)),
        ", ".join(library.interpreters),
        library.error or library.trouble or library.waiting_for,
    )


def _calls(calls: CallActivity, seconds: float) -> tuple[str, ...]:
    failed = calls.failed + calls.died
    return (
        calls.operator,
        calls.key,
        f"{calls.library} v{calls.version}" if calls.library else "",
        _rate(calls.count, seconds),
        _rate(failed, seconds) if failed else "",
        *map(_time, (calls.run_mean, calls.run_p99, calls.queue_mean, calls.queue_p99)),
    )


def _death(death: InterpreterDeath) -> tuple[str, ...]:
    from opdispatch_client.cli.output import format_time

    why = f"{death.cause}: {death.reason}"
    return (format_time(death.at), death.interpreter, why, ", ".join(death.running))


def _rate(count: int, seconds: float) -> str:
    return f"{count / seconds:.1f}"


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds else ""


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    add_command(app, "top", top, rich_help_panel=PANEL)

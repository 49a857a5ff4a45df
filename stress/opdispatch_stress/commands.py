"""``opdispatch stress``; the client's command line finds it by name.

Modules that take long to import are imported by the command itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from opdispatch_client.cli.command import Settings
from opdispatch_client.cli.exit_codes import Exit, UsageError

if TYPE_CHECKING:
    from opdispatch_client.blocking import Session
    from opdispatch_stress.disruptions import Disruptions, Killer
    from opdispatch_stress.race import RaceOptions
    from opdispatch_stress.report import StressReport

_VIOLATIONS_SHOWN = 20


def stress(
    settings: Settings,
    seconds: Annotated[float, typer.Option(metavar="S", min=0.1, help="How long to race.")] = 10.0,
    interpreters: Annotated[
        int,
        typer.Option(
            metavar="I",
            min=1,
            help="Threads that load and unload; also the worker interpreters of the daemon that "
            "is started.",
        ),
    ] = 4,
    callers: Annotated[
        int, typer.Option(metavar="C", min=1, help="Threads that call operators.")
    ] = 4,
    waiters: Annotated[
        int, typer.Option(metavar="W", min=0, help="Threads that wait for operators.")
    ] = 2,
    libraries: Annotated[int, typer.Option(metavar="L", min=1, help="Libraries to race for.")] = 3,
    operators: Annotated[
        int, typer.Option(metavar="O", min=1, help="Operators of each, besides one that writes.")
    ] = 2,
    kill_every: Annotated[
        float,
        typer.Option(metavar="K", min=0, help="Kill an interpreter every K seconds; 0: never."),
    ] = 0.0,
    kill_daemon_every: Annotated[
        float,
        typer.Option(
            metavar="D",
            min=0,
            help="Kill the daemon every D seconds, and start it again; 0: never.",
        ),
    ] = 0.0,
    seed: Annotated[
        int | None,
        typer.Option(
            metavar="X", help="Repeat the choices of a race. Default: new ones.", show_default=False
        ),
    ] = None,
) -> None:
    """Race loads, replacements and unloads against calls and kills, and check every answer.

    Without --address it starts a daemon of its own, and stops it at the end. Only
    such a daemon has its interpreters killed, and is searched for leaks.

    The exit code is 1 if an answer was wrong, a request failed without cause, a
    waiter was forgotten, an invariant does not hold, or something is left behind.
    """
    import random
    import tempfile
    from pathlib import Path

    from opdispatch_client.cli.output import print_json
    from opdispatch_stress.race import RaceOptions

    for option, every in (("--kill-every", kill_every), ("--kill-daemon-every", kill_daemon_every)):
        if every and settings.address is not None:
            raise UsageError(
                f"{option} needs a daemon of its own: leave --address out, and one is started"
            )
    seed = random.SystemRandom().randrange(1_000_000) if seed is None else seed
    with tempfile.TemporaryDirectory(prefix="opdispatch-race-") as folder:
        options = RaceOptions(
            address=settings.address or "",
            tcp_address="",
            seconds=seconds,
            loaders=interpreters,
            callers=callers,
            waiters=waiters,
            libraries=libraries,
            operators=operators,
            seed=seed,
            folder=Path(folder),
            timeout=settings.seconds,
        )
        shown = not settings.json
        if settings.address is None:
            report = _race_privately(options, kill_every, kill_daemon_every, show_progress=shown)
        else:
            report = _race(options, show_progress=shown)
    if settings.json:
        print_json(report)
    else:
        _print_report(report)
    if not report.ok:
        raise typer.Exit(Exit.FAILED)


def _race_privately(
    options: RaceOptions, kill_every: float, kill_daemon_every: float, *, show_progress: bool
) -> StressReport:
    """Race against a private daemon, which must leave nothing behind."""
    from dataclasses import replace
    from random import Random

    from opdispatch_stress.disruptions import Disruptions, Killer
    from opdispatch_stress.leaks import Baseline, find_remains
    from opdispatch_stress.private_daemon import private_daemon

    with private_daemon(workers=options.loaders) as daemon:
        # A restarted daemon may have another port.
        tcp_address = "" if kill_daemon_every else daemon.tcp_address
        options = replace(options, address=daemon.address, tcp_address=tcp_address)
        disruptions = Disruptions(interpreters=kill_every > 0, daemon=kill_daemon_every > 0)
        killer = None
        if kill_every or kill_daemon_every:
            killer = Killer(
                daemon,
                disruptions,
                Random(f"{options.seed} killer"),
                every=kill_every,
                daemon_every=kill_daemon_every,
            )
        baseline = Baseline(daemon, options.loaders)
        report = _race(
            options,
            disruptions,
            killer,
            show_progress=show_progress,
            find_leaks=baseline.find_leaks,
        )
        daemon.stop()
        report.violations.extend(find_remains(daemon))
    return report


def _race(
    options: RaceOptions,
    disruptions: Disruptions | None = None,
    killer: Killer | None = None,
    *,
    show_progress: bool,
    find_leaks: Callable[[], list[str]] = list,
) -> StressReport:
    from time import perf_counter

    from opdispatch_client.blocking import connect
    from opdispatch_stress.disruptions import Disruptions
    from opdispatch_stress.race import Race
    from opdispatch_stress.report import summarize

    race = Race(options, disruptions or Disruptions(), killer)
    with connect(options.address, timeout=options.timeout) as session:
        started = perf_counter()
        try:
            with _progress(options.seconds, shown=show_progress) as on_tick:
                log = race.run(on_tick)
            passed = perf_counter() - started
        finally:
            aftermath = _clean_up(session, options)
    return summarize(
        log,
        seed=options.seed,
        seconds=passed,
        interpreters=options.loaders,
        callers=options.callers,
        libraries=options.libraries,
        operators=options.operators,
        aftermath=[*aftermath, *find_leaks()],
    )


def _clean_up(session: Session, options: RaceOptions) -> list[str]:
    """Unload the race's libraries; return the daemon's violated invariants and stale counts."""
    from opdispatch_stress.leaks import find_counts

    counted = find_counts(session)
    before = session.check_invariants()
    loaded = {library.name for library in session.libraries()}
    for name in loaded.intersection(options.names):
        session.unload(name)
    left = [operator.name for operator in session.operators(f"stress_{options.seed}_*")]
    return [
        *counted,
        *(f"the operator {name} is left after its library was unloaded" for name in left),
        *(f"invariant: {violation}" for violation in before + session.check_invariants()),
    ]


@contextmanager
def _progress(seconds: float, *, shown: bool) -> Iterator[Callable[[float], None]]:
    from opdispatch_client.cli.output import talk_console

    console = talk_console()
    if not shown or not console.is_terminal:
        yield lambda passed: None
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("racing"), BarColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("racing", total=seconds)
        yield lambda passed: progress.update(task, completed=passed)


def _print_report(report: StressReport) -> None:
    from opdispatch_client.cli.output import print_fields, print_lines, print_table

    print_fields(
        (
            ("seed", str(report.seed)),
            ("seconds", f"{report.seconds:g}"),
            ("loaders", str(report.interpreters)),
            ("callers", str(report.callers)),
            ("libraries", f"{report.libraries} of {report.operators + 1} operators"),
            *((name, str(number)) for name, number in report.counts.items()),
        )
    )
    print_lines([""])
    print_table(
        ("requests", "per second", "median ms", "p90 ms", "p99 ms", "max ms"),
        (
            (
                name,
                f"{rate:.1f}",
                *(
                    (f"{ms.p50:.2f}", f"{ms.p90:.2f}", f"{ms.p99:.2f}", f"{ms.max:.2f}")
                    if ms
                    else ("", "", "", "")
                ),
            )
            for name, rate, ms in (
                ("calls", report.calls_per_second, report.call_latencies_ms),
                ("loads", report.loads_per_second, report.load_latencies_ms),
            )
        ),
    )
    if report.excused:
        print_lines([""])
        print_table(
            ("failed, as something was killed", "times"),
            ((what, str(times)) for what, times in report.excused.items()),
        )
    problems = [
        *(f"error ({number} times): {error}" for error, number in report.errors.items()),
        *(f"violation: {violation}" for violation in report.violations),
    ]
    print_lines(["", *problems[:_VIOLATIONS_SHOWN]])
    if hidden := len(problems) - _VIOLATIONS_SHOWN:
        print_lines([f"... and {hidden} more"] if hidden > 0 else [])
    print_lines(
        [f"{len(problems)} problems" if problems else "no violations: every answer was right"]
    )

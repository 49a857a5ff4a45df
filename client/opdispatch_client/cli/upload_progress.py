"""The progress of a library's upload, as a bar on a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from opdispatch_client.cli.output import format_size, print_remark, talk_console


@contextmanager
def show_upload() -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows the number of uploaded bytes and the total.

    On a terminal that is a bar that disappears at the end; elsewhere a line when an upload begins.
    """
    talk = talk_console()
    begun = False

    def say(received: int, total: int) -> None:
        nonlocal begun
        if not begun and received < total:
            already = f", of which {format_size(received)} are there" if received else ""
            print_remark(f"uploading {format_size(total)}{already}")
        begun = True

    if not talk.is_terminal:
        yield say
        return
    from rich.progress import (
        BarColumn,
        DownloadColumn,
        Progress,
        TextColumn,
        TimeRemainingColumn,
        TransferSpeedColumn,
    )

    bar = Progress(
        TextColumn("uploading"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=talk,
        transient=True,
    )
    task = bar.add_task("", total=None, start=True)

    def show(received: int, total: int) -> None:
        if received < total and not bar.live.is_started:
            bar.start()
        bar.update(task, completed=received, total=total)
        if received >= total:
            bar.stop()

    try:
        yield show
    finally:
        bar.stop()

"""The main job, end to end: serve, load, call, replace, unload, stop. ``make demo`` runs it."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import opdispatch_client as oc

EXAMPLES = Path(__file__).resolve().parent
OUTPUT = Path("demo_output")
PHOTOGRAPH = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
WORKERS = 2

console = Console(highlight=False)


@contextmanager
def daemon(folder: Path) -> Iterator[str]:
    """Run a daemon with its own workers, from ``opdispatch serve``; yield its address."""
    address = f"unix://{folder}/daemon.sock"
    process = subprocess.Popen(
        [
            str(Path(sys.executable).with_name("opdispatch")),
            *("serve", "--listen", address, "--workers", str(WORKERS)),
            *("--state", str(folder / "state"), "--log-level", "error"),
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        if "listening" not in process.stdout.readline():
            sys.exit("the daemon did not start")
        yield address
        process.send_signal(signal.SIGTERM)
        if process.wait(timeout=10) != 0:
            sys.exit(f"the daemon ended with exit code {process.returncode}")
    finally:
        process.kill()
        process.wait()


class Caller(threading.Thread):
    """A client that keeps calling ``image::sobel`` while the library is being replaced."""

    def __init__(self, address: str, picture: np.ndarray) -> None:
        super().__init__(name="caller")
        self._address = address
        self._picture = picture
        self._stop_asked = threading.Event()
        self.answered = threading.Event()
        self.answers: Counter[str] = Counter()
        self.failures: list[Exception] = []

    def run(self) -> None:
        with oc.connect(self._address) as session:
            while not self._stop_asked.is_set():
                try:
                    edges = session.ops.image.sobel(self._picture)
                except oc.OpdispatchError as error:
                    self.failures.append(error)
                else:
                    style = "dark lines on white" if edges.mean() > 0.5 else "bright edges on black"
                    self.answers[style] += 1
                self.answered.set()

    def wait_for_answers(self, count: int) -> None:
        """Return when that many more calls have ended."""
        for _ in range(count):
            self.answered.clear()
            self.answered.wait(timeout=10)

    def stop(self) -> None:
        self._stop_asked.set()
        self.join()


def load_picture() -> np.ndarray:
    return np.asarray(Image.open(PHOTOGRAPH).convert("RGB"))


def save(name: str, picture: np.ndarray) -> Path:
    OUTPUT.mkdir(exist_ok=True)
    path = OUTPUT / name
    Image.fromarray((np.clip(picture, 0, 1) * 255).astype(np.uint8)).save(path)
    return path


def print_table(session: oc.Session, operator: str) -> None:
    table = Table(title=f"dispatch table of {operator}", title_justify="left")
    for heading in ("dispatch keys", "kernel", "why"):
        table.add_column(heading)
    slots: dict[tuple[str, str], list[str]] = {}
    for row in session.table(operator):
        kernel = "fallthrough" if row.fallthrough else Path(row.kernel).name
        slots.setdefault((kernel, row.reason), []).append(row.key)
    for (kernel, reason), keys in slots.items():
        more = f" and {len(keys) - 4} more" if len(keys) > 4 else ""
        table.add_row(", ".join(keys[:4]) + more, kernel, reason)
    console.print(table)


def print_trace(lines: list[oc.TraceLine]) -> None:
    table = Table(title="trace of one call", title_justify="left")
    for heading in ("call", "key", "kernel", "interpreter"):
        table.add_column(heading)
    for line in lines:
        call = f"{'  ' * line.depth}{line.kind} {line.operator}"
        table.add_row(call, line.key, Path(line.kernel).name, line.interpreter or "daemon")
    console.print(table)


def main() -> int:
    started = time.monotonic()
    picture = load_picture()
    progress = Progress(
        TextColumn("{task.description:<44}"), BarColumn(), TimeElapsedColumn(), console=console
    )
    steps = 8
    with tempfile.TemporaryDirectory(prefix="opdispatch-demo-") as folder, progress:
        bar = progress.add_task("starting", total=steps)

        def step(what: str) -> None:
            progress.update(bar, description=what, advance=1)

        step(f"starting a daemon with {WORKERS} interpreters")
        with daemon(Path(folder)) as address, oc.connect(address) as session:
            step("loading image_ops.py into the running daemon")
            library = session.load(EXAMPLES / "image_ops.py", name="image")
            console.print(
                f"loaded [bold]{library.name}[/] version {library.version} into "
                f"{', '.join(library.interpreters)}: {', '.join(library.operators)}"
            )

            step("calling image::sobel on a photograph")
            edges, trace = session.trace("image::sobel", picture)
            path = save("edges.png", edges)
            height, width, channels = picture.shape
            console.print(f"{width}x{height}x{channels} picture -> [bold]{path}[/]")
            counts, _ = session.call("image::histogram", picture, bins=4)
            console.print(f"image::histogram, 4 bins: {counts.tolist()} pixels")

            step("looking inside")
            print_table(session, "image::sobel")
            print_trace(trace)

            step("replacing the library while a client calls")
            caller = Caller(address, picture[200:264, 200:264])
            caller.start()
            caller.wait_for_answers(50)
            library = session.load(EXAMPLES / "image_ops_pencil.py", name="image")
            caller.wait_for_answers(50)
            caller.stop()
            table = Table(
                title=f"replaced by version {library.version} under load", title_justify="left"
            )
            table.add_column("answers")
            table.add_column("calls", justify="right")
            for style, count in caller.answers.items():
                table.add_row(style, str(count))
            table.add_row("failed", str(len(caller.failures)))
            console.print(table)
            path = save("pencil.png", session.ops.image.sobel(picture))
            console.print(f"the same call now -> [bold]{path}[/]")

            step("unloading the library")
            session.unload("image")
            try:
                session.ops.image.sobel(picture)
            except oc.OperatorNotFoundError as error:
                gone = str(error)
            else:
                gone = ""
            console.print(f"the next call says: [italic]{gone}[/]")
            violations = session.check_invariants()

            step("stopping the daemon and its interpreters")
        step("done")

    problems = [str(error) for error in caller.failures] + violations
    if len(caller.answers) != 2:
        problems.append(f"expected answers of both versions, got {dict(caller.answers)}")
    if not gone:
        problems.append("the operator could still be called after its library was unloaded")
    for problem in problems:
        console.print(f"[red]{problem}[/]")
    if problems:
        return 1
    console.print(f"[green]all of it worked[/], in {time.monotonic() - started:.1f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())

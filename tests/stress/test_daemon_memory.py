"""A daemon that loads and unloads libraries for ever does not grow.

The long version, with ``OPDISPATCH_STRESS_SECONDS`` set, is what is promised: within 5 MiB over
2,000 rounds, after the first 200.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon

pytestmark = pytest.mark.slow

LONG = "OPDISPATCH_STRESS_SECONDS" in os.environ
ROUNDS, WARM_UP, ALLOWED_MIB = (2_000, 200, 5.0) if LONG else (140, 80, 2.0)
OPERATORS = 10

LIBRARY = """\
# {number}
from opdispatch import Library

lib = Library({name!r}, "DEF")
for number in range({operators}):
    lib.define(f"op{{number}}(Tensor x) -> int")
    lib.impl(f"op{{number}}", lambda x: {number}, "CPU")
"""


def resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def load_and_unload(session: oc.Session, folder: Path, name: str, number: int) -> None:
    path = folder / f"{name}.py"
    path.write_text(LIBRARY.format(number=number, name=name, operators=OPERATORS))
    session.load(path)
    session.unload(name)
    path.unlink()


@pytest.mark.parametrize("names", [20, ROUNDS], ids=["the same names", "new names"])
def test_rounds_of_loading_and_unloading_leave_nothing(tmp_path: Path, names: int):
    daemon = RunningDaemon(tmp_path)
    try:
        daemon.wait_until_ready()
        with daemon.connect() as session:
            for number in range(WARM_UP):
                load_and_unload(session, tmp_path, f"lib{number % names}", number)
            before = resident_mib(daemon.process.pid)
            for number in range(WARM_UP, ROUNDS):
                load_and_unload(session, tmp_path, f"lib{number % names}", number)
            after = resident_mib(daemon.process.pid)
        assert after - before <= ALLOWED_MIB
    finally:
        daemon.clean_up()

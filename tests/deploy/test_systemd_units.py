"""The units of ``deploy/systemd``, read by systemd itself."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from opdispatch_server.daemon.state.folder import StateFolder
from tests.waits import LONGEST_WAIT

UNITS = sorted((Path(__file__).parents[2] / "deploy" / "systemd").glob("*.*"))
VERIFY = shutil.which("systemd-analyze")


@pytest.mark.skipif(VERIFY is None, reason="needs systemd-analyze, from the package systemd")
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_systemd_finds_no_fault_in_a_unit(unit: Path, tmp_path: Path):
    # Where a unit's program is differs by installation; here it is any that exists.
    text = unit.read_text().replace("%h/.local/bin/opdispatch", "/bin/true")
    for other in UNITS:  # a timer's service
        (tmp_path / other.name).write_text(other.read_text())
    (tmp_path / unit.name).write_text(text.replace("/opt/opdispatch/bin/opdispatch", "/bin/true"))
    command = [str(VERIFY), "verify", "--man=no", str(tmp_path / unit.name)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_WAIT)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_command_of_the_backup_unit_exports_the_state_and_keeps_thirty(tmp_path: Path):
    unit = UNITS[0].with_name("opdispatch-backup.service").read_text()
    [line] = [each for each in unit.splitlines() if each.startswith("ExecStart=")]
    specifiers = {"%%": "%", "%S": str(tmp_path)}
    line = re.sub("%.", lambda found: specifiers[found[0]], line.removeprefix("ExecStart="))
    program = f"{shlex.quote(sys.executable)} -m opdispatch_client.cli"
    line = line.replace("/opt/opdispatch/bin/opdispatch", program)
    with closing(StateFolder(tmp_path / "opdispatch")) as state, closing(state.open_journal()):
        pass
    backups = tmp_path / "backups"
    backups.mkdir()
    for number in range(35):
        (backups / f"state-20000101T0000{number:02}.zip").touch()
    environment = {**os.environ, "BACKUPS": str(backups)}
    done = subprocess.run(
        shlex.split(line), env=environment, capture_output=True, text=True, timeout=LONGEST_WAIT
    )
    assert (done.returncode, done.stderr) == (0, "")
    kept = sorted(backups.iterdir())
    assert len(kept) == 30
    assert kept[0].name == "state-20000101T000006.zip"
    assert kept[-1].stat().st_size > 0

"""The units of ``deploy/systemd``, read by systemd itself."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

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

"""The code of docs/libraries-with-weights.md runs as it stands, and prints what it says."""

from __future__ import annotations

import re
from pathlib import Path

from tests.service.running_daemon import RunningDaemon
from tests.service.test_readme import promised_output, run_python

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "libraries-with-weights.md").read_text()


def test_page_prints_what_it_says(daemon: RunningDaemon, tmp_path: Path) -> None:
    train, use, upload, hook = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert run_python(train, tmp_path, daemon.address) == []
    output = run_python(f"{use}\n{upload}", tmp_path, daemon.address)
    assert output == promised_output(PAGE) != []
    assert run_python(f"{hook}\nlib.close()\nassert log.closed", tmp_path, daemon.address) == []

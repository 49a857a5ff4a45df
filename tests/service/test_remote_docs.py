"""The code of docs/remote-tensors.md runs as it stands, and prints what it says it prints."""

from __future__ import annotations

import re
from pathlib import Path

from tests.service.running_daemon import RunningDaemon
from tests.service.test_readme import promised_output, run_python

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "remote-tensors.md").read_text()


def test_the_page_prints_what_it_says(daemon: RunningDaemon, tmp_path: Path) -> None:
    library, *blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    (tmp_path / "calc.py").write_text(library)
    program = "\n".join(blocks)
    assert run_python(program, tmp_path, daemon.address) == promised_output(program) != []

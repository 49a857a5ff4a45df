"""The code of docs/tracing.md runs as it stands, and prints and draws what the page shows."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = (DOCS / "tracing.md").read_text()
# Each with what is shown below it, if anything is.
BLOCKS = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```)?", PAGE, re.DOTALL)


def promised(block: str, shown: str) -> list[str]:
    """Return the output that the comments behind the print calls promise, or the block below."""
    return shown.splitlines() or re.findall(r"^\s*print\(.*\)\s+# (.*)$", block, re.MULTILINE)


def test_the_page_prints_and_draws_what_it_shows(monkeypatch: Any, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    scope: dict[str, Any] = {}
    ran = 0
    for block, shown in BLOCKS:
        if "oc.connect()" in block:  # tests/service/test_traced_graphs.py has a daemon
            continue
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            exec(compile(block, "docs/tracing.md", "exec"), scope)
        assert said.getvalue().splitlines() == promised(block, shown) != []
        ran += 1
        if ran == 1:
            drawn = (DOCS / "images" / "attention.svg").read_text()
            assert scope["graph"].to_svg() == drawn
    assert ran == 5

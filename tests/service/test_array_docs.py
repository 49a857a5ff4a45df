"""The code of docs/array-library.md runs as it stands, and prints what it says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.service.test_readme import promised_output, run_python

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "array-library.md").read_text()


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL))
def test_the_page_prints_what_it_says(block: str, tmp_path: Path) -> None:
    assert run_python(block, tmp_path) == promised_output(block) != []

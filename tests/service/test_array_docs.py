"""The code of pages about arrays runs as it stands, and prints what it says it prints."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.service.test_readme import promised_output, run_python

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    block
    for page in (
        "array-library.md",
        "autograd.md",
        "fake-tensors.md",
        "random.md",
        "transforms.md",
    )
    for block in re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)
]


@pytest.mark.parametrize("block", BLOCKS)
def test_the_page_prints_what_it_says(block: str, tmp_path: Path) -> None:
    assert run_python(block, tmp_path) == promised_output(block) != []

"""The pages about the profiler and about functionalities of one's own: what they show is so."""

from __future__ import annotations

import importlib.util
import itertools
import re
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import opdispatch
from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    DuplicateDefinitionError,
    Library,
    Tensor,
)

ROOT = Path(__file__).resolve().parents[2]
PROFILER = (ROOT / "docs/profiler.md").read_text()
FUNCTIONALITIES = (ROOT / "docs/functionalities.md").read_text()
CALL_CACHE = ROOT / "examples/call_cache"


def blocks(text: str, language: str = "python") -> list[str]:
    found = re.findall(r"```(\w*)\n(.*?)```", text, re.DOTALL)
    return [block for name, block in found if name == language]


def printed(program: str) -> str:
    """Run the code and return its output. Its registrations are undone afterwards."""
    names: dict[str, Any] = {}
    with redirect_stdout(StringIO()) as output:
        exec(compile(program, "<block of the docs>", "exec"), names)
    if "lib" in names:
        names["lib"].close()
    return output.getvalue()


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """``examples/call_cache/run.py``; what it imports is there, too."""
    monkeypatch.syspath_prepend(CALL_CACHE)
    spec = importlib.util.spec_from_file_location("call_cache_run", CALL_CACHE / "run.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module
    sys.modules.pop("call_cache").lib.close()


def columns(table: str) -> set[str]:
    return set(re.split(r"\s{2,}", table.splitlines()[1].strip()))


def test_the_profiler_prints_such_a_table_and_exactly_the_rest() -> None:
    table, *others = blocks(PROFILER, "")[:4]
    mark = "print('=====')\n"
    new_table, *new_others = printed(mark.join(blocks(PROFILER)[:4])).split("=====\n")
    grid, lines, steps = new_others
    lines = re.sub(r"\(\d+\)", "(3)", lines)  # counted from the beginning of its own block
    assert [grid, lines, steps] == others
    assert columns(new_table) == columns(table)
    rest = r"\n8 more rows\nSelf CPU time total: [\d.]+[mu]?s\n$"
    assert re.search(rest, table)
    assert re.search(rest, new_table)


def test_a_functionality_of_a_few_lines_works() -> None:
    [program] = blocks(FUNCTIONALITIES)
    assert printed(program) == blocks(FUNCTIONALITIES, "")[0]


def test_keys_have_the_order_that_is_shown() -> None:
    line = " ".join(blocks(FUNCTIONALITIES, "")[1].split())
    groups = [
        [DispatchKey[name] for name in names.split(", ") if name != "..."]
        for names in line.split(" > ")
    ]
    assert len(groups) >= 12
    for higher, lower in itertools.pairwise(groups):
        for one, other in itertools.product(higher, lower):
            keys = DispatchKeySet.of(one, other, DispatchKey.CPU)
            alone = DispatchKeySet.of(one, DispatchKey.CPU)
            assert keys.highest_priority_key == alone.highest_priority_key


def test_the_keys_that_are_said_to_be_free_take_a_fallback() -> None:
    rows = FUNCTIONALITIES.partition("These keys have no kernel by default")[2].partition(
        "PyTorch reserves"
    )[0]
    names = [
        name
        for row in re.findall(r"^\| (`.*?) \|", rows, re.MULTILINE)
        for name in re.findall(r"`(\w+)`", row)
    ]
    assert len(names) >= 10
    for name in names:
        with Library("_", "IMPL") as lib:
            lib.fallback(opdispatch.fallthrough_kernel, name)
            with pytest.raises(DuplicateDefinitionError):
                lib.fallback(opdispatch.fallthrough_kernel, name)


def test_the_readme_of_the_cache_is_true(run: ModuleType) -> None:
    text = (CALL_CACHE / "README.md").read_text()
    [program] = blocks(text)
    assert printed(program) == "True\n"
    [console] = blocks(text, "console")
    run.X = Tensor(np.eye(20))
    with redirect_stdout(StringIO()) as output:
        run.main()
    figure = re.compile(r"[\d.]+(?= ms)")
    shown = console.splitlines()[1:]
    for one, other in zip(shown, output.getvalue().splitlines(), strict=True):
        assert figure.sub("", one).split() == figure.sub("", other).split()
    for each in figure.findall(console):  # the page about functionalities has the same ones
        assert f"{each} ms" in FUNCTIONALITIES

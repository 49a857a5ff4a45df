"""A library that defines what another one has: the error names that one, and how to replace it."""

from __future__ import annotations

from pathlib import Path

import pytest

import opdispatch_client as oc

OWNER = """
from opdispatch import Library

lib = Library("owned", "DEF")
lib.define("get() -> int")
"""
FRAGMENT = """
from opdispatch import Library

lib = Library("owned", "FRAGMENT")
lib.define("get() -> int")
"""


@pytest.mark.parametrize("interpreter", ["worker-1", "worker-2"])
@pytest.mark.parametrize("text", [OWNER, FRAGMENT])
def test_a_second_definition_names_the_library_that_has_the_first(
    shared: oc.Session, tmp_path: Path, text: str, interpreter: str
):
    (tmp_path / "first.py").write_text(OWNER)
    (tmp_path / "second.py").write_text(text + "# another one\n")
    shared.load(tmp_path / "first.py", interpreter="worker-1")
    with pytest.raises(oc.DuplicateDefinitionError) as caught:
        shared.load(tmp_path / "second.py", interpreter=interpreter)
    assert caught.value.hint.startswith("that is library 'first': load this one as 'first'")
    assert ("FRAGMENT" in caught.value.hint) is (text is OWNER)


def test_loading_under_the_name_in_the_hint_replaces_that_library(
    shared: oc.Session, tmp_path: Path
):
    (tmp_path / "first.py").write_text(OWNER)
    (tmp_path / "second.py").write_text(OWNER + "# another one\n")
    version = shared.load(tmp_path / "first.py").version
    with pytest.raises(oc.DuplicateDefinitionError, match="--name first"):
        shared.load(tmp_path / "second.py")
    assert shared.load(tmp_path / "second.py", name="first").version == version + 1

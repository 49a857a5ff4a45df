"""Deprecated names warn the line that uses them, and go in the version that they say."""

import ast
import inspect
import re
import tomllib
import warnings

import pytest
from packaging.version import Version

import opdispatch
from opdispatch.local_state.deprecation import warn_deprecated
from tests.unit.test_import_layers import MODULES, ROOMS, ROOT

SINCE = {"since": "0.1.0", "removed": "1.0.0"}


def old_name():
    warn_deprecated("old_name", replacement="new_name", **SINCE)


@pytest.fixture
def inside(monkeypatch):
    """Have ``old_name`` pass for a function of the distribution."""
    ours = dict(old_name.__globals__, __name__="opdispatch.somewhere")
    return type(old_name)(old_name.__code__, ours)


MESSAGE = "old_name is deprecated since opdispatch 0.1.0 and will be removed in 1.0.0: use new_name"


def test_warning_points_at_the_line_that_calls(inside):
    with pytest.warns(DeprecationWarning, match=f"^{re.escape(MESSAGE)}$") as caught:
        inside()
    line = inspect.currentframe().f_lineno - 1
    assert (caught[0].filename, caught[0].lineno) == (__file__, line)


def test_warning_is_shown_once_for_each_line_that_calls(inside):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            inside()
        inside()
    assert len(caught) == 2
    assert caught[0].lineno != caught[1].lineno


def test_impl_abstract_warns_with_the_category_of_pytorch():
    with pytest.warns(FutureWarning, match=r"impl_abstract is deprecated .* use register_fake"):
        opdispatch.impl_abstract("deprecation::nothing", lib=None)


def test_no_deprecated_name_is_kept_past_the_version_that_removes_it():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    calls = [
        {each.arg: ast.literal_eval(each.value) for each in node.keywords if each.arg in SINCE}
        for room in ROOMS
        for path in MODULES[room].values()
        if "warn_deprecated(" in (text := path.read_text(encoding="utf-8"))
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "warn_deprecated"
    ]
    assert calls
    for each in calls:
        since, removed = Version(each["since"]), Version(each["removed"])
        assert since <= Version(project["version"]) < removed

"""``Library.on_unload``: functions that are called once when a library goes."""

from __future__ import annotations

import logging
import threading

import pytest

from opdispatch import Dispatcher, Library, OperatorName
from opdispatch.errors import RegistrationError
from opdispatch.library.unload_hooks import collected_unload_hooks, run_unload_hooks


@pytest.fixture
def library() -> Library:
    return Library("hooked", "FRAGMENT", dispatcher=Dispatcher())


def test_hooks_run_once_in_reverse_order_when_the_library_is_closed(library: Library):
    called: list[str] = []
    library.define("f() -> ()")

    @library.on_unload
    def first() -> None:
        called.append("first")

    def second() -> None:
        # What it registered has gone before.
        assert library.dispatcher.find_schema(OperatorName.parse("hooked::f")) is None
        called.append("second")

    assert library.on_unload(second) is second
    with library:
        assert called == []
    assert called == ["second", "first"]
    library.close()
    assert called == ["second", "first"]
    with pytest.raises(RegistrationError, match="has been closed"):
        library.on_unload(first)


def test_exception_in_a_hook_is_logged_and_stops_no_other(
    library: Library, caplog: pytest.LogCaptureFixture
):
    called: list[str] = []
    library.on_unload(lambda: called.append("first"))

    @library.on_unload
    def broken() -> None:
        raise SystemExit("no")

    with caplog.at_level(logging.ERROR, "opdispatch.library"):
        library.close()
    assert called == ["first"]
    assert "broken raised" in caplog.text


def test_hooks_of_several_libraries_are_collected_and_limited_in_time():
    release, called = threading.Event(), []
    with collected_unload_hooks() as hooks:
        one = Library("one", "FRAGMENT", dispatcher=Dispatcher())
        two = Library("two", "FRAGMENT", dispatcher=Dispatcher())
    one.on_unload(lambda: called.append("one"))
    two.on_unload(lambda: release.wait(60))
    assert not run_unload_hooks(hooks, 0.01)
    assert called == []
    release.set()
    assert run_unload_hooks(hooks, 60)
    with pytest.raises(RegistrationError, match="has been unloaded"):
        one.on_unload(release.set)

"""Fixtures and hooks for every test."""

from __future__ import annotations

import functools
import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, settings

# Where it is set, each of the many processes of the tests would compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Machines that run tests are shared and slow at times: an example may take as long as it needs.
for _profile, _examples in (("fast", 100), ("thorough", 2000)):
    settings.register_profile(
        _profile,
        deadline=None,
        max_examples=_examples,
        suppress_health_check=[HealthCheck.too_slow],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))


def pytest_configure() -> None:
    """Let Ctrl-C reach the processes that tests start.

    A shell starts what runs in its background with SIGINT ignored, and that is inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the collector during collection: nothing that is made for tests goes away."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Freeze the objects of the tests themselves for the collector.

    That is millions of objects, which every ``gc.collect()`` of a test would go through. Garbage
    among them is little, and looking for it would take a second.
    """
    gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def _leave_earlier_modules_alone() -> None:
    """Freeze the objects left by tests of other modules for the collector.

    After some thousands of tests, a ``gc.collect()`` would take a second for that.
    """
    _freeze_what_is_there()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Send no reports of setups and teardowns that passed from the processes of pytest-xdist.

    Each costs both sides as much as that of the test itself. Only these options show them.
    """
    options = item.config.option
    if not hasattr(item.config, "workerinput") or options.durations or options.xmlpath:
        return None
    for report in runtestprotocol(item, log=False, nextitem=nextitem):
        if report.when == "call" or not report.passed:
            item.ihook.pytest_runtest_logreport(report=report)
    return True


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what needs a GPU, and say what is missing, where none can be used.

    `make gpu` is for machines that have one: there, nothing is passed over. What installs packages
    is for `make installs`.
    """
    if item.get_closest_marker("installs") and not os.environ.get("OPDISPATCH_INSTALLS"):
        pytest.skip("`make installs` runs it")
    if item.get_closest_marker("gpu") is None or not (why := _absence_of_gpus()):
        return
    give_up = pytest.fail if os.environ.get("OPDISPATCH_REQUIRE_GPU") else pytest.skip
    give_up(f"no GPU can be used: {why}")


@pytest.fixture(scope="session")
def cupy() -> Any:
    """The module ``cupy``, for tests that are marked ``gpu``."""
    from opdispatch.arrays.cupy_errors import import_cupy

    return import_cupy("cuda:0")


@pytest.fixture
def eager_switching() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture
def accelerator() -> Iterator[Any]:
    """A simulated accelerator, registered in this process: interpreters have their own."""
    from opdispatch import register_backend
    from tests.simulated_accelerator import Accelerator

    backend = Accelerator()
    registration = register_backend(backend)
    yield backend
    registration.close()


@functools.cache
def _absence_of_gpus() -> str:
    from opdispatch.arrays.cupy_errors import explain_absence

    return explain_absence()


def _freeze_what_is_there() -> None:
    gc.collect()
    gc.freeze()

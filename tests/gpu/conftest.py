"""Tests on a GPU: `make gpu` runs them. Without one they are skipped, and say what is missing."""

from __future__ import annotations

import os
from typing import Any

import pytest

from opdispatch.arrays import CupyBackend
from opdispatch.arrays.cupy_errors import explain_absence, import_cupy
from tests.service.conftest import start_daemon, write_library

__all__ = ["start_daemon", "write_library"]


@pytest.fixture(scope="session", autouse=True)
def cupy() -> Any:
    """The module ``cupy``."""
    if why := explain_absence():
        # `make gpu` is for machines that have one: there, nothing is passed over.
        give_up = pytest.fail if os.environ.get("OPDISPATCH_REQUIRE_GPU") else pytest.skip
        give_up(f"no GPU can be used: {why}")
    return import_cupy("cuda:0")


@pytest.fixture(scope="session")
def backend(cupy: Any) -> CupyBackend:
    return CupyBackend()

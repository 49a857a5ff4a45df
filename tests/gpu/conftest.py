"""Tests on a GPU: `make gpu` runs them."""

from __future__ import annotations

from typing import Any

import pytest

from opdispatch.arrays import CupyBackend
from tests.service.conftest import start_daemon, write_library

__all__ = ["start_daemon", "write_library"]


@pytest.fixture(scope="session")
def backend(cupy: Any) -> CupyBackend:
    return CupyBackend()

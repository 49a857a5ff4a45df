"""What holds for every test."""

from __future__ import annotations

import gc
import signal


def pytest_configure() -> None:
    """Lets Ctrl-C reach the processes that tests start.

    A shell starts what runs in its background with SIGINT ignored, and that is inherited.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Has the collector leave alone what the tests themselves consist of.

    That is millions of objects, which every ``gc.collect()`` of a test would go through.
    """
    gc.collect()
    gc.freeze()

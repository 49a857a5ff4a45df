"""The futures of a session's submitted calls: their limit, and the thread of their callbacks."""

from __future__ import annotations

import logging
import math
import threading
import time
from concurrent.futures import Future
from typing import Any

from opdispatch_client.blocking.call_future import Abandon, Callback, CallFuture
from opdispatch_client.blocking.one_thread import OneThread
from opdispatch_wire.errors import DeadlineExceededError

LOG = logging.getLogger("opdispatch.client")

SUBMITTED_AT_MOST = 1024
"""Most submitted calls of a session in flight; the next one waits."""


class SubmittedFutures:
    """The futures of one session. Thread-safe."""

    def __init__(self) -> None:
        self._slots = threading.BoundedSemaphore(SUBMITTED_AT_MOST)
        self._callbacks = OneThread("call-callbacks")

    def begin(self, abandon: Abandon | None = None) -> CallFuture | None:
        """Return the future of one more call; None if the call has to wait.

        ``abandon`` is called if the call gets no result.
        """
        if not self._slots.acquire(blocking=False):
            return None
        return CallFuture(self._run_callback, self._slots.release, abandon)

    def begin_until(self, deadline: float | None, abandon: Abandon | None = None) -> CallFuture:
        """Return the future of one more call like ``begin``, waiting until the limit permits it.

        If that takes until ``deadline``, by ``time.monotonic``, the returned future has failed.
        """
        left = None
        if deadline is not None and deadline != math.inf:
            left = max(deadline - time.monotonic(), 0.0)
        if self._slots.acquire(timeout=left):
            return CallFuture(self._run_callback, self._slots.release, abandon)
        future = CallFuture(self._run_callback, _nothing, abandon)
        future.fail(
            DeadlineExceededError(
                f"the deadline passed while {SUBMITTED_AT_MOST} other calls of the session were "
                "under way; this one never started",
                started="no",
            )
        )
        return future

    def close(self) -> None:
        """Run the queued callbacks; later ones run in the thread that ends their future."""
        self._callbacks.close()

    def _run_callback(self, callback: Callback, future: Future[Any]) -> None:
        try:
            self._callbacks.submit(_run_logged, callback, future)
        except RuntimeError:  # the session is closed, or the system's limit of threads reached
            _run_logged(callback, future)


def _nothing() -> None:
    """No-op callback of a future that has no slot to return."""


def _run_logged(callback: Callback, future: Future[Any]) -> None:
    try:
        callback(future)
    except Exception:  # as any future of concurrent.futures does
        LOG.exception("exception calling callback for %r", future)

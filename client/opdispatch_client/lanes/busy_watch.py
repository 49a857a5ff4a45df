"""Move direct calls away from an interpreter while a kernel of another operator holds its GIL."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

from opdispatch.errors import OpdispatchError
from opdispatch_client.lanes.direct_way import DirectWay, InterpreterLane
from opdispatch_client.lanes.waiting_calls import (
    LOOK_SECONDS,
    WaitingCall,
    WaitingCalls,
    waiting_call,
)
from opdispatch_client.listings import Interpreter


class BusyWatch:
    """A thread that runs while there are calls, and queries the daemon about those that wait long.

    Guards      ``_lock`` guards ``_is_there``: while there are calls, the thread runs, unless it
                could not be started; then the next call tries again.
    """

    def __init__(self, list_interpreters: Callable[[], list[Interpreter]]) -> None:
        self._list_interpreters = list_interpreters
        self._calls = WaitingCalls()
        self._lock = threading.Lock()
        self._is_there = False
        self._stopped = threading.Event()

    def add(self, call: WaitingCall) -> None:
        """Watch a call.

        Its ``give_up`` is called at most once, in the watch's thread, and must not block. It may be
        set later, by ``begun``.
        """
        self._calls.add(call)
        if not self._is_there:
            self._start()

    def begun(self, call: WaitingCall, give_up: Callable[[], object]) -> None:
        """Set the function that ends the wait for a call, which may have ended already."""
        call.give_up = give_up
        # ``remove`` takes the call out first and then clears ``give_up``; with the opposite order
        # here, one of the two always clears it.
        if call not in self._calls:
            call.give_up = None

    def remove(self, call: WaitingCall) -> None:
        """Stop watching a call. Idempotent; does not wait for a ``give_up`` in progress."""
        self._calls.remove(call)

    @contextlib.contextmanager
    def watching(self, way: DirectWay[InterpreterLane]) -> Iterator[Callable[[], bool]]:
        """Watch a call of this thread; yield a function that tells whether it should move."""
        call, is_given_up = waiting_call(way), threading.Event()
        call.give_up = is_given_up.set
        self.add(call)
        try:
            yield is_given_up.is_set
        finally:
            self.remove(call)

    def stop(self) -> None:
        """Stop for good. Idempotent."""
        self._stopped.set()

    def _start(self) -> None:
        with self._lock:
            if self._is_there or self._stopped.is_set():
                return
            with contextlib.suppress(RuntimeError):  # no thread: the system's limit is reached
                threading.Thread(target=self._run, name="busy-watch", daemon=True).start()
                self._is_there = True

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if self._calls.is_look_due(time.monotonic()):
                with contextlib.suppress(OpdispatchError):  # the calls keep waiting
                    self._calls.give_up_where_busy(self._list_interpreters())
            with self._lock:
                # Clear the flag before looking for calls: ``add`` does the opposite, so that a call
                # is either seen here, or finds the flag cleared and starts a thread.
                self._is_there = False
                if not self._calls:
                    return
                self._is_there = True

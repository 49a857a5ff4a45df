"""Direct calls leave an interpreter while a kernel of another operator keeps its lock."""

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
    """A thread that is there while calls are, and asks the daemon once for all that wait long.

    Guards      ``_lock`` guards ``_is_there``: the thread is there, or there are no calls, or it
                could not be started: it is, with the next call that finds a thread.
    """

    def __init__(self, list_interpreters: Callable[[], list[Interpreter]]) -> None:
        self._list_interpreters = list_interpreters
        self._calls = WaitingCalls()
        self._lock = threading.Lock()
        self._is_there = False
        self._stopped = threading.Event()

    def add(self, call: WaitingCall) -> None:
        """Watch a call.

        Its ``give_up`` is called at most once, in the thread, must not wait for anything, and may
        be set later, with ``begun``.
        """
        self._calls.add(call)
        if not self._is_there:
            self._start()

    def begun(self, call: WaitingCall, give_up: Callable[[], object]) -> None:
        """Set the function that ends the wait for a call, which may be over already."""
        call.give_up = give_up
        if call not in self._calls:  # in this order: ``remove`` looks the other way round
            call.give_up = None

    def remove(self, call: WaitingCall) -> None:
        """Watch a call no longer. Idempotent; a ``give_up`` that has begun goes on."""
        self._calls.remove(call)

    @contextlib.contextmanager
    def watching(self, way: DirectWay[InterpreterLane]) -> Iterator[Callable[[], bool]]:
        """Watch a call that a thread waits for; return a function that says if it should move."""
        call, is_given_up = waiting_call(way), threading.Event()
        call.give_up = is_given_up.set
        self.add(call)
        try:
            yield is_given_up.is_set
        finally:
            self.remove(call)

    def stop(self) -> None:
        """Do nothing more. Idempotent."""
        self._stopped.set()

    def _start(self) -> None:
        with self._lock:
            if self._is_there or self._stopped.is_set():
                return
            with contextlib.suppress(RuntimeError):  # of threading: the system's limit is reached
                threading.Thread(target=self._run, name="busy-watch", daemon=True).start()
                self._is_there = True

    def _run(self) -> None:
        while not self._stopped.wait(LOOK_SECONDS):
            if self._calls.is_look_due(time.monotonic()):
                with contextlib.suppress(OpdispatchError):  # those that wait go on waiting
                    self._calls.give_up_where_busy(self._list_interpreters())
            with self._lock:
                # In this order: ``add`` looks for the thread after it has added the call.
                self._is_there = False
                if not self._calls:
                    return
                self._is_there = True

"""Has direct calls run elsewhere while a kernel of another operator keeps the interpreter lock."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

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
        """Watch a call. Its ``give_up`` is called at most once, in the thread, must not wait for
        anything, and may be set later, with ``begun``.
        """
        self._calls.add(call)
        if not self._is_there:
            self._start()

    def begun(self, call: WaitingCall, give_up: Callable[[], object]) -> None:
        """Say how to end the wait for a call, which may be over already."""
        call.give_up = give_up
        if call not in self._calls:  # in this order: ``remove`` looks the other way round
            call.give_up = None

    def remove(self, call: WaitingCall) -> None:
        """The call is over. Idempotent; a ``give_up`` that has begun goes on."""
        self._calls.remove(call)

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
                # In this order: whoever adds a call looks for the thread after that.
                self._is_there = False
                if not self._calls:
                    return
                self._is_there = True


class Patience:
    """What a thread that waits for a call asks now and then: whether it is given up."""

    __slots__ = ("_call", "_is_given_up", "_watch", "_way")

    def __init__(self, watch: BusyWatch, way: DirectWay[InterpreterLane]) -> None:
        self._watch = watch
        self._way = way
        self._call: WaitingCall | None = None
        self._is_given_up = False

    def is_given_up(self) -> bool:
        """Return whether the call should run elsewhere. It is watched from the first time on."""
        if self._call is None:
            self._call = waiting_call(self._way)
            self._call.give_up = self._give_up
            self._watch.add(self._call)
        return self._is_given_up

    def end(self) -> None:
        """The call is over."""
        if self._call is not None:
            self._watch.remove(self._call)

    def _give_up(self) -> None:
        self._is_given_up = True

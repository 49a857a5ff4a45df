"""Whether an interpreter's own process can still run kernels: see ``Fitness``."""

from __future__ import annotations

import asyncio
import builtins
import os
import socket
import threading
import time
from collections.abc import Callable
from types import ModuleType

import numpy as np

from opdispatch.errors import InternalError, OpdispatchError
from opdispatch_wire.errors import RefusedError
from opdispatch_wire.v1 import values_pb2
from opdispatch_wire.values import fill_value, value_from_proto

# What every call needs; a kernel may have replaced any of these functions.
_MODULES: tuple[ModuleType, ...] = (builtins, np, os, threading, time, socket, asyncio)
_CALLABLES = {
    module: [
        name for name, value in vars(module).items() if callable(value) and not name.startswith("_")
    ]
    for module in _MODULES
}
_MEMORY = 1 << 20
_VALUES = [np.arange(3.0), list(range(20)), "text", 1.5, None, [True, "text"]]

# So many errors that no kernel raised, within so many seconds, are too many.
INTERNAL_ERRORS = 3
INTERNAL_ERRORS_WITHIN = 10.0


class Fitness:
    """Whether this process can run kernels properly; ``problem`` says why not, or is "".

    A kernel can exhaust the descriptors or the memory of a process, or replace a function that all
    others need. Then other kernels fail. So the process is checked with every heartbeat, when a
    kernel fails, and after the first run of each kernel. A process that is found unfit takes no
    more calls, and ``on_unfit`` is called once, in any thread.

    ``suspect`` is the operator whose first run had just ended when the problem was found; otherwise
    "".
    """

    def __init__(self, on_unfit: Callable[[], None]) -> None:
        self.problem = ""
        self.suspect = ""
        self._on_unfit = on_unfit
        self._internal_errors: list[float] = []
        self._lock = threading.Lock()  # guards the change from "" to a problem

    def check(self, suspect: str = "") -> str:
        """Check the process and return the problem."""
        return self.problem or self._note(find_problem(), suspect)

    def check_after(self, error: BaseException) -> str:
        """Check after a call has failed with an error, which may be the only symptom."""
        problem = self.check()
        if problem or (isinstance(error, OpdispatchError) and not isinstance(error, InternalError)):
            return problem
        now = time.monotonic()
        recent = [at for at in self._internal_errors if now - at < INTERNAL_ERRORS_WITHIN]
        self._internal_errors = [*recent, now]
        if len(self._internal_errors) < INTERNAL_ERRORS:
            return ""
        what = f"{type(error).__name__}: {str(error)[:200]}"
        return self._note(
            f"calls fail with errors that do not come from kernels, the last with {what}", ""
        )

    def refusal(self, operator: str) -> RefusedError:
        """Return the error for a call that is to run in another interpreter."""
        return RefusedError(
            f"the interpreter is about to be replaced ({self.problem}); the call of {operator} is "
            "to be made in another one",
            hint="ask the daemon",
            operator=operator,
            unfit=self.problem,
            unfit_after=self.suspect,
            started="no",
        )

    def _note(self, problem: str, suspect: str) -> str:
        if not problem:
            return ""
        with self._lock:
            is_news = not self.problem
            if is_news:
                self.suspect = suspect  # first: a reader of the problem finds it
                self.problem = problem
        if is_news:
            self._on_unfit()
        return self.problem


def find_problem() -> str:
    """Return why this process cannot run kernels properly; "" if it can."""
    try:
        for module, names in _CALLABLES.items():
            for name, value in zip(names, map(vars(module).get, names), strict=True):
                if not callable(value):
                    return f"something has taken {module.__name__}.{name} away"
        os.close(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        bytearray(_MEMORY)
        for value in _VALUES:
            message = values_pb2.Value()
            fill_value(message, value, at="$")
            data = message.SerializeToString()
            found = value_from_proto(values_pb2.Value.FromString(data))
            if not (
                np.array_equal(found, value) if isinstance(value, np.ndarray) else found == value
            ):
                return f"{type(value).__name__}s do not come back as they were sent"
    except OSError as error:
        return f"it cannot open a file: {error.strerror}"
    except MemoryError:
        return "it has no memory left"
    except Exception as error:  # any error is a symptom: the values are our own
        return f"values cannot be packed any more ({type(error).__name__}: {str(error)[:200]})"
    return ""

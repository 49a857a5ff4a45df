"""The context manager in which an interpreter runs a kernel that may use a GPU.

Note [The order of a GPU's work]
    The host does not wait for a kernel's work until it reads elements. Work is ordered on the GPU
    instead, because all of it runs on one stream per GPU, CUDA's legacy default stream, whichever
    threads the calls run in:

    - every kernel starts on that stream, and so do the backend's own copies: each call finds the
      results of the previous one complete;
    - CUDA orders work on a kernel's own streams with the default stream, unless the streams were
      created with ``non_blocking=True``. For those, the kernel must wait, or make the default
      stream wait;
    - if a kernel leaves another stream as the current one, the default stream waits for it, by an
      event and without blocking the host, and the thread's next call starts on the default stream.

    Released memory is reused in the order of that stream, too: CuPy's pool gives a block only to
    work on the stream that it was allocated for.

    Entering a block allocates nothing on a GPU, so a kernel without GPU work costs no memory there.
    Since CUDA 12, ``cudaSetDevice`` creates a context of some hundred MiB; it is therefore called
    only to change the current GPU, and an interpreter with an assigned GPU does not change back.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from opdispatch.errors import DeviceError


class CupyKernelBlock:
    """Make GPU ``number`` current and order its work. For one thread, and one use.

    ``number`` is None for the current GPU. ``explained`` converts what CuPy raises on entry and
    exit to a DeviceError. Unless ``goes_back`` is true, the GPU stays current afterwards. See
    Note [The order of a GPU's work].
    """

    def __init__(
        self,
        cupy: Any,
        number: int | None,
        explained: Callable[[Exception], DeviceError],
        *,
        goes_back: bool = True,
    ) -> None:
        self._cuda = cupy.cuda
        self._number = number
        self._goes_back = goes_back
        self._explained = explained
        self._stack = ExitStack()
        self._device = 0

    def __enter__(self) -> None:
        try:
            with ExitStack() as stack:
                before = self._cuda.runtime.getDevice()
                self._device = before if self._number is None else self._number
                if self._goes_back:
                    stack.callback(self._use, before)
                self._use(self._device)
                stack.enter_context(self._cuda.Stream.null)
                self._stack = stack.pop_all()
        except Exception as error:
            raise self._explained(error) from error

    def __exit__(self, cls: object, raised: object, traceback: object) -> None:
        try:
            with self._stack:
                self._order()
        except Exception as error:
            if raised is None:  # else the kernel's own exception is the cause
                raise self._explained(error) from error

    def _use(self, number: int) -> None:
        if self._cuda.runtime.getDevice() != number:
            self._cuda.runtime.setDevice(number)

    def _order(self) -> None:
        self._use(self._device)  # the kernel may have made another GPU current
        default = self._cuda.Stream.null
        current = self._cuda.get_current_stream()
        if current.ptr != default.ptr:
            default.wait_event(current.record(self._cuda.Event(disable_timing=True)))

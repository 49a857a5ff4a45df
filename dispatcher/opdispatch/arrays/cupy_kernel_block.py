"""The block in which an interpreter runs a kernel that may use a GPU.

Note [The order of a GPU's work]
    The host does not wait for a kernel's work: it waits where elements are read. In between, all
    is in order because it all is on one stream for each GPU, CUDA's default stream (the legacy
    one), whichever threads the calls run in:

    - every kernel begins on it, and so does whatever the backend does beside kernels: what one
      call makes, the next one finds complete;
    - work that a kernel puts onto streams of its own is ordered with it by CUDA, unless those
      are made with ``non_blocking=True``. Of such a stream the kernel itself says that the default
      stream is to wait for it, or waits for it;
    - a stream that a kernel leaves behind as the current one is waited for here: by the default
      stream, for an event, and not by the host. The next call of that thread does not find it.

    Memory that is let go of is used again in the order of that stream, too: CuPy's pool gives a
    block only to work on the stream that it was taken for.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from opdispatch.errors import DeviceError


class CupyKernelBlock:
    """Kernels in it use a GPU, whose number may be left out, in order. For one thread, once.

    ``explained`` makes an error of ours of what CuPy raises on the way in and out. See
    Note [The order of a GPU's work].
    """

    def __init__(
        self, cupy: Any, number: int | None, explained: Callable[[Exception], DeviceError]
    ) -> None:
        self._cuda = cupy.cuda
        self._number = number
        self._explained = explained
        self._stack = ExitStack()

    def __enter__(self) -> None:
        try:
            with ExitStack() as stack:
                # Without a number it is that of now: a kernel may go to another one.
                self._device = self._cuda.Device(self._number)
                stack.enter_context(self._device)
                stack.enter_context(self._cuda.Stream.null)
                self._stack = stack.pop_all()
        except Exception as error:
            raise self._explained(error) from error

    def __exit__(self, cls: object, raised: object, traceback: object) -> None:
        try:
            with self._stack:
                self._order()
        except Exception as error:
            if raised is None:  # else, what the kernel has raised says more
                raise self._explained(error) from error

    def _order(self) -> None:
        self._device.use()  # the kernel may have gone to another one
        default = self._cuda.Stream.null
        current = self._cuda.get_current_stream()
        if current.ptr != default.ptr:
            default.wait_event(current.record(self._cuda.Event(disable_timing=True)))

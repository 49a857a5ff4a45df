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

    Memory that is released is used again in the order of that stream, too: CuPy's pool gives a
    block only to work on the stream that it was taken for.

    A block by itself uses no GPU, and so costs a kernel that uses none no memory there: since CUDA
    12, ``cudaSetDevice`` makes a context, of some hundred MiB, and so it is called only where
    another GPU than the current one is to be used. An interpreter that was given a GPU does not
    go back to the first one afterwards, either.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from opdispatch.errors import DeviceError


class CupyKernelBlock:
    """Kernels in it use a GPU, whose number may be left out, in order. For one thread, once.

    ``explained`` makes an error of ours of what CuPy raises on the way in and out. Without
    ``goes_back`` the thread stays at the GPU. See Note [The order of a GPU's work].
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
            if raised is None:  # else, what the kernel has raised says more
                raise self._explained(error) from error

    def _use(self, number: int) -> None:
        if self._cuda.runtime.getDevice() != number:
            self._cuda.runtime.setDevice(number)

    def _order(self) -> None:
        self._use(self._device)  # the kernel may have gone to another one
        default = self._cuda.Stream.null
        current = self._cuda.get_current_stream()
        if current.ptr != default.ptr:
            default.wait_event(current.record(self._cuda.Event(disable_timing=True)))

"""``LoggingMode``: logs a line for each operator call, with dtypes and shapes."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.local_state.torch_dispatch_mode import TorchDispatchMode

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle


class LoggingMode(TorchDispatchMode):
    """Logs the operator calls in a block; calls made by their kernels are indented below them.

        array::matmul(float32[2, 3], float32[3, 4]) -> float32[2, 4]

    Lines are passed to ``write``, or printed to stderr by default, when the outermost call ends. A
    failed call's line ends with the name of the error's class. Calls made by kernels are not logged
    if there is another mode below this one. Use it for one block at a time.
    """

    def __init__(self, write: Callable[[str], object] | None = None) -> None:
        super().__init__()
        self._write = write
        self._lines: list[str] = []
        self._depth = 0

    def __torch_dispatch__(
        self,
        func: OperatorHandle,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        place = len(self._lines)
        given = [_describe(each) for each in args]
        given += [f"{name}={_describe(value)}" for name, value in kwargs.items()]
        self._lines.append(f"{'  ' * self._depth}{func.name}({', '.join(given)})")
        self._depth += 1
        try:
            result = self.call_kernel(func, types, args, kwargs)
        except BaseException as error:
            self._lines[place] += f" raises {type(error).__qualname__}"
            raise
        else:
            self._lines[place] += f" -> {_describe(result)}"
            return result
        finally:
            self._depth -= 1
            if not self._depth:
                self._write_lines()

    def _write_lines(self) -> None:
        lines, self._lines = self._lines, []
        for line in lines:
            if self._write is None:
                print(line, file=sys.stderr)
            else:
                self._write(line)


def _describe(value: Any) -> str:
    """Describe a tensor as ``float32[2, 3]``, and other values by their repr."""
    if isinstance(value, list | tuple):
        inner = ", ".join(map(_describe, value))
        return f"[{inner}]" if isinstance(value, list) else f"({inner})"
    if find_key_bits(value) is None:
        return str(value) if hasattr(value, "itemsize") else repr(value)
    shape = getattr(value, "shape", None)
    if shape is None:
        return type(value).__qualname__
    return f"{getattr(value, 'dtype', type(value).__qualname__)}{list(shape)}"

"""Protection of arguments that the schema does not declare as written to.

In a worker interpreter, they are read-only arrays. In process, kernels get the caller's own arrays
or, with ``OPDISPATCH_STRICT=1``, read-only views. The setting is read when a kernel is first looked
up, so it costs nothing when off.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tensors.tensor import Tensor

STRICT = os.environ.get("OPDISPATCH_STRICT", "0") not in ("", "0")

WRITE_HINT = (
    "arguments are read-only unless the schema declares a write: declare it, as in "
    '"Tensor(a!) x", or write to a copy'
)

# The messages of NumPy, memoryviews, ctypes, Cython and Numba for a write to read-only memory, for
# which there is no common class or attribute.
_REFUSAL = re.compile(r"read.?only|WRITEABLE|not writ(e)?able|read-write", re.IGNORECASE)


def hint_of_write(error: BaseException) -> str:
    """Return WRITE_HINT if ``error`` is about a write to a read-only array, else ""."""
    if type(error) not in (ValueError, TypeError, BufferError):
        return ""
    with suppress(Exception):  # str() of an exception may raise
        return WRITE_HINT if _REFUSAL.search(str(error)) else ""
    return ""


def with_read_only_arguments(
    function: Callable[..., Any], schema: FunctionSchema, keys: DispatchKeySet
) -> Callable[..., Any]:
    """Return ``function``, given read-only arrays where the schema declares no write.

    Results in an argument's memory are as writable as the argument. Tensors above the backends,
    such as in kernels for Autograd, are passed unchanged, since they are more than their elements:
    the kernels called there are protected themselves.
    """
    positional = [not each.is_write for each in schema.arguments if not each.kwarg_only]
    written = {each.name for each in schema.arguments if each.is_write}
    takes_tensors = keys.highest_functionality_key is DispatchKey.Dense

    def call(*args: Any, **kwargs: Any) -> Any:
        views = _ReadOnlyViews(takes_tensors=takes_tensors)
        given = [
            views.of(value) if protect else value
            for protect, value in zip(positional, args, strict=True)
        ]
        named = {
            name: value if name in written else views.of(value) for name, value in kwargs.items()
        }
        try:
            return views.given_back(function(*given, **named))
        except (ValueError, TypeError, BufferError) as error:
            if hint := hint_of_write(error):
                error.add_note(hint)
            raise

    return call


class _ReadOnlyViews:
    """The views of one call's arguments: one for each, however often it was passed."""

    def __init__(self, *, takes_tensors: bool) -> None:
        self._takes_tensors = takes_tensors
        self._views: dict[int, Any] = {}
        # By id of the view, the view and its argument, which keeps both alive, so that no id is
        # reused.
        self._originals: dict[int, tuple[Any, Any]] = {}

    def of(self, value: Any) -> Any:
        if type(value) is list:
            return [self.of(each) for each in value]
        if (known := self._views.get(id(value))) is not None:
            return known
        view = value
        if type(value) is np.ndarray:
            if value.flags.writeable:
                view = value.view()
                view.flags.writeable = False
        elif type(value) is Tensor and self._takes_tensors and type(value.array) is np.ndarray:
            array = self.of(value.array)
            if array is not value.array:
                view = value.detach_here()
                view.array = array
        if view is not value:
            self._views[id(value)] = view
            self._originals[id(view)] = (view, value)
        return view

    def given_back(self, result: Any) -> Any:
        """Return the arguments themselves in place of their views, and writable views of them."""
        if isinstance(result, list | tuple):
            results = [self.given_back(each) for each in result]
            return results if isinstance(result, list) else tuple(results)
        if id(result) in self._originals:
            return self._originals[id(result)][1]
        array = result.array if isinstance(result, Tensor) else result
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            given = (value for _, value in self._originals.values() if type(value) is np.ndarray)
            # Without elements, it shares no memory.
            if not array.size or any(np.may_share_memory(array, each) for each in given):
                with suppress(ValueError):  # the array is the kernel's own
                    array.flags.writeable = True
        return result

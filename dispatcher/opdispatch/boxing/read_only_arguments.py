"""Arguments that a schema does not declare as written to cannot be written to.

In an interpreter they are read-only arrays. In process, kernels are given the caller's own arrays,
unless ``OPDISPATCH_STRICT=1`` is set: then they are given read-only views. That is decided when a
kernel is looked up for the first time, and costs nothing otherwise.
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

# What NumPy, memoryviews, ctypes, Cython and Numba say of a write to memory that is read-only.
# There is no class and no attribute for that.
_REFUSAL = re.compile(r"read.?only|WRITEABLE|not writ(e)?able|read-write", re.IGNORECASE)


def hint_of_write(error: BaseException) -> str:
    """Return WRITE_HINT if ``error`` is of a write to an array that is read-only, else ""."""
    if type(error) not in (ValueError, TypeError, BufferError):
        return ""
    with suppress(Exception):  # what an error was made with may have no text
        return WRITE_HINT if _REFUSAL.search(str(error)) else ""
    return ""


def with_read_only_arguments(
    function: Callable[..., Any], schema: FunctionSchema, keys: DispatchKeySet
) -> Callable[..., Any]:
    """Return ``function``, given read-only arrays where the schema declares no write.

    Results that lie in the memory of an argument are as writable as that. Tensors are left alone
    above the backends, such as in kernels for Autograd, where they are more than their elements:
    what is called there for these is looked after in its turn.
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
    """The views of one call's arguments: one for each, however often it was given."""

    def __init__(self, *, takes_tensors: bool) -> None:
        self._takes_tensors = takes_tensors
        self._views: dict[int, Any] = {}
        # By the view: what it stands for. It keeps both, so that no id is used twice.
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
        """Return the arguments themselves for their views, and writable views of them."""
        if isinstance(result, list | tuple):
            results = [self.given_back(each) for each in result]
            return results if isinstance(result, list) else tuple(results)
        if id(result) in self._originals:
            return self._originals[id(result)][1]
        array = result.array if isinstance(result, Tensor) else result
        if isinstance(array, np.ndarray) and not array.flags.writeable:
            given = (value for _, value in self._originals.values() if type(value) is np.ndarray)
            # Without elements, it shares none.
            if not array.size or any(np.may_share_memory(array, each) for each in given):
                with suppress(ValueError):  # an array of the kernel's own
                    array.flags.writeable = True
        return result

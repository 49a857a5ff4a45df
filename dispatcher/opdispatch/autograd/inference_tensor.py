"""Inference tensors, created in inference mode: they have no version and are never part of a graph.

They have no autograd keys, so calls with inference tensors only skip autograd, also outside the
mode. Uses that need the graph, above all a version, raise an error.

Mirrors ``c10/core/InferenceMode.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.autograd_meta import VersionCounter
from opdispatch.autograd.variable import meta_of
from opdispatch.errors import AutogradError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET, DispatchKeySet
from opdispatch.schema.function_schema import FunctionSchema

ADINPLACE_OR_VIEW_BIT = DispatchKeySet.of(DispatchKey.ADInplaceOrView).bits
_KEYS_OF_AUTOGRAD = (AUTOGRAD_KEYSET | DispatchKeySet.of(DispatchKey.ADInplaceOrView)).bits


class _NoVersion(VersionCounter):
    """Version counter of all inference tensors: writes are not counted, and reading it raises."""

    __slots__ = ()

    def _refuse(self, *_: Any) -> NoReturn:
        raise AutogradError(
            "a tensor that was made in inference mode has no version: outside of the mode it "
            "cannot be written to, nor be saved for the backward pass",
            hint="make a copy of it there, or calculate it under no_grad",
        )

    value = property(_refuse, _refuse)


_NO_VERSION = object.__new__(_NoVersion)


def is_inference(tensor: Any) -> bool:
    """Return whether a tensor was made in inference mode."""
    meta = tensor.autograd_meta
    return meta is not None and meta.counter is _NO_VERSION


def make_inference(tensor: Any) -> None:
    """Mark a tensor as an inference tensor."""
    tensor.key_bits &= ~_KEYS_OF_AUTOGRAD
    meta_of(tensor).counter = _NO_VERSION


def marking_results(schema: FunctionSchema, function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a kernel for inference mode so that its results are marked as inference tensors."""

    def mark(*args: Any, **kwargs: Any) -> Any:
        result = function(*args, **kwargs)
        _mark_results(schema, [*args, *kwargs.values()], result)
        return result

    return mark


def _mark_results(schema: FunctionSchema, stack: Sequence[Any], result: Any) -> None:
    """Mark results as inference tensors; a view only if its base is one."""
    results = [result] if len(schema.returns) == 1 else result or ()
    given = [each for value in stack for each in (value if type(value) is list else (value,))]
    for returned, value in zip(schema.returns, results, strict=False):
        for each in value if isinstance(value, list) else (value,):
            if not hasattr(each, "autograd_meta") or isinstance(each.array, LevelArray):
                continue
            is_view = returned.alias_info is not None
            if not any(each is other for other in given) and (
                not is_view or any(hasattr(o, "autograd_meta") and is_inference(o) for o in given)
            ):
                make_inference(each)

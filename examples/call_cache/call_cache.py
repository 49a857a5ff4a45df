"""A functionality of one's own: calls that were made before are not made again.

    with call_cache(max_bytes=100_000_000) as cache:
        U, S, Vh = xp.linalg.svd(x)     # calculated
        U, S, Vh = xp.linalg.svd(x)     # remembered
    print(cache.hits)                   # 1

It needs nothing of opdispatch but what every user has: a fallback for a dispatch key that no other
code uses, a guard that adds the key to the calls of a block, and a redispatch to what comes after
it.
"""

from __future__ import annotations

import hashlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Self

import numpy as np

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    ExcludeDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    KernelFunction,
    Library,
    OperatorHandle,
    Tensor,
)

KEY = DispatchKey.FPGA
"""Below autograd, autocast and modes, above dense tensors; opdispatch does nothing with it."""

_BELOW = DispatchKeySet.full_after(KEY)


class _Entered(NamedTuple):
    cache: call_cache
    guard: IncludeDispatchKeyGuard
    outer: _Entered | None


# Of a context, as the local dispatch keys are: each task and thread has its own.
_entered: ContextVar[_Entered | None] = ContextVar("call_cache", default=None)


class _NotCacheableError(Exception):
    """A value that cannot be a part of a key, or of what is remembered."""


class _Remembered(NamedTuple):
    returns: list[Any]
    num_bytes: int


class call_cache:  # noqa: N801 - a guard, named like those of PyTorch
    """Remembers results of calls in a block, in this task and those it begins.

    At most ``max_bytes`` of results are kept; those that were used least recently go first. Calls
    are equal if operator, kernel and arguments are: tensors by their elements. With
    ``by="version"`` it is enough that it is the same Tensor at the same version, which saves
    looking at large ones; then what is written to ``tensor.array`` without the dispatcher goes
    unnoticed.

    Operators that write to arguments, that return views of them or have the tag
    "nondeterministic_seeded", calls without a tensor, and those with anything but dense NumPy
    arrays are made as ever. The cache may be entered again, also by several threads at a time:
    what it has remembered stays. Raises ValueError.

    ``_lock`` protects all that follows it, and is not held while kernels run.
    """

    def __init__(
        self, max_bytes: int = 256 << 20, *, by: Literal["elements", "version"] = "elements"
    ) -> None:
        if max_bytes < 0 or by not in ("elements", "version"):
            raise ValueError('expected max_bytes >= 0, and by="elements" or by="version"')
        self.max_bytes = max_bytes
        self._by_version = by == "version"
        self._lock = threading.Lock()
        self._remembered: OrderedDict[Hashable, _Remembered] = OrderedDict()
        self.num_bytes = 0
        self.hits = 0
        self.misses = 0
        self.passed = 0
        """Calls that are not for a cache."""

    def clear(self) -> None:
        """Forget all results."""
        with self._lock:
            self._remembered.clear()
            self.num_bytes = 0

    def __enter__(self) -> Self:
        entered = _Entered(self, IncludeDispatchKeyGuard(KEY), _entered.get())
        entered.guard.__enter__()
        _entered.set(entered)
        return self

    def __exit__(self, *exc: Any) -> None:
        entered = _entered.get()
        assert entered is not None, "it was entered in this task"
        _entered.set(entered.outer)
        entered.guard.__exit__(*exc)

    def __repr__(self) -> str:
        return (
            f"<call_cache: {self.hits} hits, {self.misses} misses, {self.passed} passed, "
            f"{len(self._remembered)} results of {self.num_bytes:,} bytes>"
        )

    def call(self, op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Put what is remembered on the stack, or have the call made by the kernels below."""
        try:
            key = self._key_of(op, keys, stack)
        except _NotCacheableError:
            with self._lock:
                self.passed += 1
            op.redispatch_boxed(keys, stack)
            return
        with self._lock:
            found = self._remembered.get(key)
            if found is not None:
                self._remembered.move_to_end(key)
                self.hits += 1
            else:
                self.misses += 1
        if found is not None:
            stack[:] = map(_copy, found.returns)
            return
        arguments = [value for value in _flat(stack) if _array_of(value) is not None]
        # What the kernel itself calls is remembered with it.
        with ExcludeDispatchKeyGuard(KEY):
            op.redispatch_boxed(keys, stack)
        self._remember(key, stack, arguments)

    def _key_of(self, op: OperatorHandle, keys: DispatchKeySet, stack: Sequence[Any]) -> Hashable:
        schema = op.schema
        if (
            schema.is_mutable
            or any(each.alias_info for each in (*schema.arguments, *schema.returns))
            or "nondeterministic_seeded" in op.tags
            or not any(_array_of(value) is not None for value in _flat(stack))
        ):
            raise _NotCacheableError
        # A kernel that is registered over another one gives other results.
        kernel = op.lookup(keys).kernel
        return str(op.name), kernel, tuple(self._part_of_key(value) for value in stack)

    def _part_of_key(self, value: Any) -> Hashable:
        if isinstance(value, list):
            return tuple(self._part_of_key(each) for each in value)
        array = _array_of(value)
        if array is None:
            if isinstance(value, float | complex):
                return type(value), repr(value)  # 0.0 equals -0.0, and nan nothing
            if value is None or isinstance(value, bool | int | str | np.dtype):
                return type(value), value
            raise _NotCacheableError
        if array.dtype.hasobject:
            raise _NotCacheableError
        if self._by_version and isinstance(value, Tensor):
            return _SameTensor(value), value._version
        elements = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        digest = hashlib.blake2b(elements.data, digest_size=32).digest()
        return type(value), digest, array.shape, array.dtype

    def _remember(self, key: Hashable, returns: Sequence[Any], arguments: Sequence[Any]) -> None:
        given = [_array_of(value) for value in arguments]
        num_bytes = 0
        for value in _flat(returns):
            array = _array_of(value)
            if array is None:
                if isinstance(value, bool | int | float | complex | str | None):
                    continue
                return
            if any(np.may_share_memory(array, each) for each in given):
                return  # a view, though the schema does not say so
            num_bytes += array.nbytes
        if num_bytes > self.max_bytes:
            return
        kept = _Remembered([_copy(value) for value in returns], num_bytes)
        with self._lock:
            replaced = self._remembered.pop(key, None)
            self.num_bytes += num_bytes - (replaced.num_bytes if replaced is not None else 0)
            self._remembered[key] = kept
            while self.num_bytes > self.max_bytes:
                _, oldest = self._remembered.popitem(last=False)
                self.num_bytes -= oldest.num_bytes


class _SameTensor:
    """Equal to another one while both are of the same, living tensor."""

    __slots__ = ("_hash", "_reference")

    def __init__(self, value: Tensor) -> None:
        self._reference = weakref.ref(value)
        self._hash = id(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        mine = self._reference()
        return isinstance(other, _SameTensor) and mine is not None and mine is other._reference()


def _array_of(value: Any) -> np.ndarray[Any, Any] | None:
    """Return the NumPy array of a dense tensor on the CPU; None for anything else."""
    if isinstance(value, Tensor):
        value = value.array
    return value if type(value) is np.ndarray else None


def _flat(values: Sequence[Any]) -> list[Any]:
    return [each for value in values for each in (value if isinstance(value, list) else [value])]


def _copy(value: Any) -> Any:
    """Copy a value, so that callers do not write to what is remembered, or share tensors."""
    if isinstance(value, list):
        return [_copy(each) for each in value]
    array = _array_of(value)
    if array is None:
        return value
    return Tensor(array.copy()) if isinstance(value, Tensor) else array.copy()


def _call(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Serve every call of a block as the fallback, with its arguments on ``stack``."""
    entered = _entered.get()
    below = keys & _BELOW
    if entered is None:  # another thread has added the key
        op.redispatch_boxed(below, stack)
    else:
        entered.cache.call(op, below, stack)


lib = Library("_", "IMPL")
lib.fallback(KernelFunction.from_boxed(_call), KEY)

"""The memory that a session shares with the interpreters that it calls directly."""

from __future__ import annotations

import contextlib
import logging
import math
import reprlib
import sys
import threading
import weakref
from collections.abc import Callable
from operator import index
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from opdispatch.errors import ArgumentError
from opdispatch_wire.dtypes import dtype_to_name
from opdispatch_wire.errors import RefusedError, WireError
from opdispatch_wire.lanes.lane_memory import CallerLaneMemory, Put
from opdispatch_wire.shared_memory.shared_mapping import is_supported
from opdispatch_wire.shared_memory.tensor_arena import IDLE_SECONDS, TensorArena

LOG = logging.getLogger("opdispatch.client")

Shape = int | tuple[int, ...] | list[int]


class SessionMemory:
    """One arena for the arguments of a session's calls; each lane shares the parts that it uses.

    Thread-safe.

    Guards      ``_lock`` guards ``_lanes``, ``_is_wanted`` and ``_has_warned``: after one failure
                to share memory, no new lane shares any, and only one warning is logged.
    """

    def __init__(self, *, is_wanted: bool, on_use: Callable[[], None]) -> None:
        """Create the session's memory.

        ``on_use`` is called when ``is_in_use`` becomes true, so that memory is released later.
        """
        self._on_use = on_use
        self._arena = TensorArena(on_drop=self._drop, on_exhausted=self._warn)
        self._lock = threading.Lock()
        self._lanes: weakref.WeakSet[CallerLaneMemory] = weakref.WeakSet()
        self._is_wanted = is_wanted
        self._has_warned = False

    @property
    def share(self) -> Callable[[Put], CallerLaneMemory] | None:
        """The factory of the memory that newly opened lanes share; None if they share none."""
        return self._share if self._is_wanted and is_supported() else None

    @property
    def is_in_use(self) -> bool:
        """Whether there may be memory to release."""
        with self._lock:
            lanes = list(self._lanes)
        return bool(self._arena.regions) or any(lane.is_in_use for lane in lanes)

    def empty(self, shape: Shape, dtype: DTypeLike) -> np.ndarray[Any, Any]:
        """Return an uninitialized array in shared memory, if possible."""
        element = _as_dtype(dtype)
        dtype_to_name(element, at="dtype")
        whole = _as_shape(shape)
        if any(extent < 0 for extent in whole):
            raise ValueError(f"shape is {shape}; a dimension is never negative")
        if math.prod(extent or 1 for extent in whole) * element.itemsize > sys.maxsize:
            raise WireError(f"shape is {shape}, which exceeds the address space")
        if self.share is None:
            return np.empty(whole, element)
        self._on_use()
        return self._arena.empty(whole, element)

    def refuse(self, lane: CallerLaneMemory | None, error: RefusedError) -> None:
        """Stop using shared memory, since an interpreter could not map it."""
        if lane is not None:
            lane.send_inline()
        self._give_up(error.message)

    def trim(self) -> None:
        """Return memory that has been unused for a while to the system."""
        self._arena.trim(idle_seconds=IDLE_SECONDS)

    def close(self) -> None:
        """Return all unused memory, and the rest as soon as it becomes unused."""
        self._arena.close()

    def _share(self, put: Put) -> CallerLaneMemory:
        lane = CallerLaneMemory(self._arena, put, self._give_up, self._on_use)
        with self._lock:
            self._lanes.add(lane)
        return lane

    def _drop(self, region: int) -> None:
        with self._lock:
            lanes = list(self._lanes)
        for lane in lanes:
            lane.drop(region)

    def _give_up(self, why: str) -> None:
        with self._lock:
            self._is_wanted = False
        self._warn(
            f"memory cannot be shared with an interpreter ({why}); tensors are sent inline "
            "from now on, which is slower"
        )

    def _warn(self, text: str) -> None:
        """Log a warning, once for the session."""
        with self._lock:
            is_first, self._has_warned = not self._has_warned, True
        if is_first:
            LOG.warning("%s", text)


def _as_dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        return np.dtype(dtype)
    except (TypeError, ValueError) as error:  # also for a string that is not UTF-8
        raise ArgumentError(f"dtype is {reprlib.repr(dtype)}; expected a dtype: {error}") from None


def _as_shape(shape: Shape) -> tuple[int, ...]:
    with contextlib.suppress(TypeError):
        whole = (shape,) if isinstance(shape, int | np.integer) else tuple(shape)
        return tuple(map(index, whole))
    raise ArgumentError(f"shape is {reprlib.repr(shape)}; expected an int, or a tuple of them")

"""What both kinds of sessions have for arrays in shared memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from opdispatch_client.session_memory import SessionMemory, Shape


class SharedArrays:
    """The arrays of a session whose calls share ``_memory`` with interpreters."""

    _memory: SessionMemory

    def empty(self, shape: Shape, dtype: DTypeLike = np.float64) -> np.ndarray[Any, Any]:
        """An uninitialised array, as ``numpy.empty`` makes it, that calls need not copy.

        It lies in memory that the session shares with the interpreters which it calls directly;
        they read it, or a contiguous part of it, where it is, and write there what their operators
        write. So let it be while a call that has it is under way. `shape` is an int or a tuple
        of them, and `dtype` any that tensors can have; arrays of bools are copied all the same.

        It is an ordinary array where no memory can be shared, or none is left, or if it is
        smaller than a page; any other use of it is an ordinary array's, also after ``close``. Its
        memory is free again when the last view of it is collected. Raises WireError for a
        dtype that tensors cannot have, and ValueError for a negative dimension.
        """
        return self._memory.empty(shape, dtype)

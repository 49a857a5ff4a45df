"""From the key bits of a call to the key that serves it, skipping fallthrough kernels.

Mirrors ``ATen/core/dispatch/DispatchKeyExtractor.h``: an operator's mask has the functionalities
whose kernels do not fall through, one mask for each backend.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from opdispatch.keys.dispatch_key import (
    FUNCTIONALITIES,
    FUNCTIONALITY_BIT,
    NUM_BACKENDS,
    DispatchKey,
)
from opdispatch.keys.dispatch_key_set import OFFSET_AND_MASK, RUNTIME_KEYS, WORD_MASK

if TYPE_CHECKING:
    from opdispatch.dispatch.registration import Registration


def is_fallthrough(registration: Registration | None) -> bool:
    """Return whether ``registration`` is of a fallthrough kernel, which is never called."""
    kernel = registration.kernel if registration is not None else None
    return kernel is not None and kernel.is_fallthrough


def table_key(bits: int) -> DispatchKey:
    """Return the key whose slot serves a call with ``bits``; without a backend, the CPU's."""
    offset, mask = OFFSET_AND_MASK[(bits >> NUM_BACKENDS).bit_length()]
    return RUNTIME_KEYS[offset + max((bits & mask).bit_length() - 1, 0)]


def non_fallthrough_mask(backend: int, falls_through: Callable[[DispatchKey], bool]) -> int:
    """Return the bits of the functionalities that are not skipped with this highest backend.

    ``falls_through`` says whether the slot of a runtime key falls through. All backend bits are
    set.
    """
    mask = WORD_MASK
    for functionality in FUNCTIONALITIES:
        place = FUNCTIONALITY_BIT[functionality]
        if falls_through(table_key(1 << place | 1 << backend)):
            mask &= ~(1 << place)
    return mask

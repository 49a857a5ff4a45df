"""What the functionality keys do, one file each; and the fallbacks every dispatcher starts with."""

from __future__ import annotations

from opdispatch.dispatch_key import DispatchKey
from opdispatch.functionalities import autograd, passive
from opdispatch.kernel_function import KernelFunction

BUILTIN_FALLBACKS: dict[DispatchKey, KernelFunction] = {
    **passive.FALLBACKS,
    **autograd.FALLBACKS,
}
"""The backend fallback of each runtime key that has one from the start."""

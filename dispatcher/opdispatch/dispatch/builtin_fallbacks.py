"""The backend fallbacks that every dispatcher has from the start: PyTorch's, by runtime key.

A slot that ``functionalities/`` fills when it is imported: its kernels redispatch, and so stand
above the dispatcher.
"""

from __future__ import annotations

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import DispatchKey

BUILTIN_FALLBACKS: dict[DispatchKey, KernelFunction] = {}

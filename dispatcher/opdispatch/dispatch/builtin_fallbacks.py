"""The backend fallbacks that every dispatcher has from the start: PyTorch's, by runtime key.

``functionalities/`` sets it on import: its kernels redispatch, and so belong to a layer above the
dispatcher.
"""

from __future__ import annotations

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import DispatchKey

BUILTIN_FALLBACKS: dict[DispatchKey, KernelFunction] = {}

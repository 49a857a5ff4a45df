"""Functionality keys that fall through unless an operator has a kernel for them.

PyTorch registers a fallthrough for each (``BackendSelectFallbackKernel.cpp``,
``VariableFallbackKernel.cpp``, ``autocast_mode.cpp``, ``VmapModeRegistrations.cpp``). Every plain
tensor has ADInplaceOrView, and BackendSelect is in the local included set of every task, so almost
every call passes these keys.
"""

from __future__ import annotations

from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.keys.dispatch_key import DispatchKey

KEYS = (
    DispatchKey.BackendSelect,
    DispatchKey.ADInplaceOrView,
    DispatchKey.AutocastCPU,
    DispatchKey.AutocastMTIA,
    DispatchKey.AutocastMAIA,
    DispatchKey.AutocastXPU,
    DispatchKey.AutocastMPS,
    DispatchKey.AutocastCUDA,
    DispatchKey.FuncTorchVmapMode,
    DispatchKey.VmapMode,
)

FALLBACKS = {key: KernelFunction.fallthrough() for key in KEYS}

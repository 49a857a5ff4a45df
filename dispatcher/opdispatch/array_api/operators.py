"""The operators that the namespace calls: of ``opdispatch.array_library``, or private ones."""

from __future__ import annotations

from functools import partial
from typing import Any

from opdispatch.arrays import COMPONENTS
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.dispatch.dispatcher import Dispatcher
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import NoKernelError
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.library import library as default_library
from opdispatch.library.library import Library
from opdispatch.library.ops import Ops
from opdispatch.native.array.autocast import register_autocast_kernels
from opdispatch.native.array.batching import register_batching
from opdispatch.native.array.derivatives import register_derivatives
from opdispatch.native.array.functionalization import register_functionalization
from opdispatch.native.array.operators import NAMESPACE, register
from opdispatch.tensors import operators as tensor_operators

_OWN_BACKENDS = (BackendComponent.CPU, BackendComponent.CUDA, BackendComponent.Meta)


def _choose() -> Any:
    if not tensor_operators.is_private():
        import opdispatch.array_library  # noqa: F401  # loads the library

        return default_library.ops.array
    dispatcher = Dispatcher()
    others = Library("_", "IMPL", dispatcher=dispatcher)
    for backend in set(COMPONENTS.values()).difference(_OWN_BACKENDS):
        key = to_runtime_key(DispatchKey.Dense, backend)
        go_on = partial(_call_shared, DispatchKeySet.of(key))
        others.fallback(KernelFunction.from_boxed(go_on), key)
    library = Library(NAMESPACE, "DEF", dispatcher=dispatcher)
    register(library)
    register_derivatives(library)
    register_batching(library)
    register_autocast_kernels(library)
    register_functionalization(library)
    return Ops(dispatcher).array


def _call_shared(
    keys: DispatchKeySet, op: OperatorHandle, _: DispatchKeySet, stack: list[Any]
) -> None:
    """Redispatch to the default dispatcher, where libraries register kernels or a fallback for the
    backends that they provide.

    Raises NoKernelError if the operator is not defined there.
    """
    shared = default_library.default_dispatcher().find_schema(op.name)
    if shared is None:
        raise NoKernelError(
            f"{op.name} has no kernel for arguments from the {keys.highest_priority_key} backend",
            hint="load opdispatch.array_library, and a library with kernels or a fallback for it",
            operator=str(op.name),
        )
    shared.redispatch_boxed(keys, stack)


OPERATORS: Any = _choose()
"""``ops.array`` of the default dispatcher or, in a worker, of a private one."""

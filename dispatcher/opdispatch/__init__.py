"""PyTorch's operator dispatcher, stand-alone: the library for use inside one process.

    from opdispatch import Library, ops

    lib = Library("math", "DEF")
    lib.define("add(Tensor x, Tensor y) -> Tensor")
    lib.impl("add", lambda x, y: x + y, "CPU")
    ops.math.add(x, y)

The package, from the bottom up; a module imports only from its own entry and those above. Rarely
used modules, such as ``func`` and ``tracing``, are imported when a name of theirs is first used:

    errors/              every exception
    metrics              counters that libraries update and a daemon exports
    keys/                dispatch keys and sets of them
    schema/              the schema language
    local_state/         the task's local key sets, modes and guards
    arrays/              arrays of every library and layout
    autograd/            the graph of recorded calls, and the backward pass
    tensors/             the tensor
    boxing/              kernels, and conversions of their arguments
    dispatch/            registrations, and the kernel that a call reaches
    functorch/           transforms: vmap, grad and so on
    functionalities/     the kernels of each functionality key
    library/             ``Library``, ``ops`` and ``custom_op``
    tracing/             graphs of traced calls
    modes/               built-in modes: fake tensors, FLOP counting, call logging
    native/              the built-in operators
    array_library, random_library                importing one loads its operators
    array_api/           the array API standard over them
    optests/, profiler/  operator tests; the profiler

    generator, func, deferred_init, fake_tensor  public names for modules above
"""

from importlib import import_module
from typing import TYPE_CHECKING

# Import from the bottom up, in the order above, to keep imports shallow: in a deep nest of imports,
# a call may cross a chunk boundary of Python's stack, which then maps memory on each call.
# isort: off
from opdispatch.errors import (
    AmbiguousKernelError,
    ArgumentError,
    AutogradError,
    DataDependentOutputError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    DispatchKeyError,
    DuplicateDefinitionError,
    GraphError,
    InternalError,
    KernelTypeError,
    LibraryError,
    NoKernelError,
    OpCheckError,
    OpdispatchError,
    OperatorNotFoundError,
    RegistrationError,
    ReturnError,
    ScalarRangeError,
    SchemaError,
    SchemaMismatchError,
    TransformError,
    WaitTimeoutError,
)
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, parse_dispatch_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.schema.function_schema import Argument, FunctionSchema, OperatorName
from opdispatch.schema.tag import Tag
from opdispatch.schema.parser import parse_schema
from opdispatch.local_state.trace_line import TraceLine
from opdispatch.local_state.local_dispatch_key_set import (
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    local_dispatch_key_set,
    tls_is_dispatch_key_excluded,
    tls_is_dispatch_key_included,
    tls_set_dispatch_key_excluded,
    tls_set_dispatch_key_included,
)
from opdispatch.local_state.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from opdispatch.local_state.autocast_mode import (
    autocast,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
)
from opdispatch.local_state.torch_dispatch_mode import TorchDispatchMode
from opdispatch.local_state.tracing_state import TracerWarning
from opdispatch.arrays import (
    ArrayBackend,
    BackendRegistration,
    DeviceMemory,
    DeviceTransfers,
    MetaArray,
    NestedArray,
    QuantizedArray,
    count_transfer,
    device_transfers,
    register_backend,
)
from opdispatch.tensors.generator import Generator, default_generator, manual_seed
from opdispatch.tensors.tensor import Tensor
from opdispatch.library.infer_schema import Device, infer_schema
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.dispatch.registration import Registration, RegistrationHandle
from opdispatch.dispatch.registration_listener import RegistrationListener
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.functorch.functionalization import functionalize
from opdispatch.functionalities.batched_fallback import BatchingFallbackWarning
from opdispatch.dispatch.transaction import Transaction
from opdispatch.dispatch.dispatcher import Dispatcher
from opdispatch.library.library import (
    Library,
    default_dispatcher,
    define,
    fallthrough_kernel,
    impl,
    ops,
)
from opdispatch.local_state import lazy_imports as _lazy_imports
# isort: on

if TYPE_CHECKING:
    from opdispatch import array_api, func
    from opdispatch.functionalities.cpu_fallback import (
        CpuFallbackWarning,
        cpu_fallback,
        cpu_fallback_counts,
    )
    from opdispatch.functorch.vmap import vmap
    from opdispatch.library.autocast_registration import register_autocast
    from opdispatch.library.autograd_registration import register_autograd
    from opdispatch.library.custom_operator import CustomOpDef, custom_op
    from opdispatch.library.fake_registration import impl_abstract, register_fake
    from opdispatch.library.jvp_registration import register_jvp
    from opdispatch.library.kernel_registration import register_kernel
    from opdispatch.library.safe_kernel_function import SafeKernelFunction, get_kernel
    from opdispatch.library.torch_dispatch_registration import register_torch_dispatch
    from opdispatch.library.vmap_registration import register_vmap
    from opdispatch.local_state.dispatch_trace import capture_dispatch_trace, show_dispatch_trace
    from opdispatch.local_state.fake_impl import get_ctx
    from opdispatch.local_state.numpy_dtype_promotion import numpy_dtype_promotion
    from opdispatch.modes.flop_counter import FlopCounterMode, register_flop_formula
    from opdispatch.modes.logging_mode import LoggingMode
    from opdispatch.optests.opcheck import opcheck
    from opdispatch.profiler.profile import profile
    from opdispatch.profiler.record_function import record_function
    from opdispatch.tensors.layout_creation import (
        nested_tensor,
        nested_tensor_from_jagged,
        quantize_per_tensor,
        sparse_coo_tensor,
        sparse_csr_tensor,
    )
    from opdispatch.tracing import Graph, Tracer, load_graph, save_graph, trace


def _array_namespace() -> object:
    from opdispatch import array_api

    return array_api


def _array_operators() -> object:
    from opdispatch.array_api.operators import OPERATORS

    return OPERATORS


def _vmap() -> object:
    from opdispatch.functorch.vmap import vmap

    return vmap


def _tensor_getitem() -> object:
    from opdispatch.array_api.subscript import make_getitem

    return make_getitem()


def _call_below_python() -> object:
    from opdispatch.functionalities.python_fallback import call_below_python

    return call_below_python


_lazy_imports.fill_slots(
    array_namespace=_array_namespace,
    array_operators=_array_operators,
    vmap=_vmap,
    call_below_python=_call_below_python,
    tensor_getitem=_tensor_getitem,
)

OpOverload = OperatorHandle
"""PyTorch's Python name for ``OperatorHandle``."""

__all__ = [
    "AmbiguousKernelError",
    "Argument",
    "ArgumentError",
    "ArrayBackend",
    "AutogradError",
    "BackendComponent",
    "BackendRegistration",
    "BatchingFallbackWarning",
    "CpuFallbackWarning",
    "CustomOpDef",
    "DataDependentOutputError",
    "Device",
    "DeviceError",
    "DeviceLostError",
    "DeviceMemory",
    "DeviceMemoryError",
    "DeviceTransfers",
    "DispatchKey",
    "DispatchKeyError",
    "DispatchKeySet",
    "Dispatcher",
    "DuplicateDefinitionError",
    "ExcludeDispatchKeyGuard",
    "FlopCounterMode",
    "ForceDispatchKeyGuard",
    "FunctionSchema",
    "Generator",
    "Graph",
    "GraphError",
    "IncludeDispatchKeyGuard",
    "InternalError",
    "KernelFunction",
    "KernelTypeError",
    "Library",
    "LibraryError",
    "LoggingMode",
    "MetaArray",
    "NestedArray",
    "NoKernelError",
    "OpCheckError",
    "OpOverload",
    "OpdispatchError",
    "OperatorHandle",
    "OperatorName",
    "OperatorNotFoundError",
    "QuantizedArray",
    "Registration",
    "RegistrationError",
    "RegistrationHandle",
    "RegistrationListener",
    "ReturnError",
    "SafeKernelFunction",
    "ScalarRangeError",
    "SchemaError",
    "SchemaMismatchError",
    "Tag",
    "Tensor",
    "TorchDispatchMode",
    "TraceLine",
    "Tracer",
    "TracerWarning",
    "Transaction",
    "TransformError",
    "WaitTimeoutError",
    "array_api",
    "autocast",
    "capture_dispatch_trace",
    "clear_autocast_cache",
    "count_transfer",
    "cpu_fallback",
    "cpu_fallback_counts",
    "custom_op",
    "default_dispatcher",
    "default_generator",
    "define",
    "device_transfers",
    "enable_grad",
    "fallthrough_kernel",
    "func",
    "functionalize",
    "get_autocast_dtype",
    "get_ctx",
    "get_kernel",
    "impl",
    "impl_abstract",
    "infer_schema",
    "inference_mode",
    "is_autocast_cache_enabled",
    "is_autocast_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "load_graph",
    "local_dispatch_key_set",
    "manual_seed",
    "nested_tensor",
    "nested_tensor_from_jagged",
    "no_grad",
    "numpy_dtype_promotion",
    "opcheck",
    "ops",
    "parse_dispatch_key",
    "parse_schema",
    "profile",
    "quantize_per_tensor",
    "record_function",
    "register_autocast",
    "register_autograd",
    "register_backend",
    "register_fake",
    "register_flop_formula",
    "register_jvp",
    "register_kernel",
    "register_torch_dispatch",
    "register_vmap",
    "save_graph",
    "set_grad_enabled",
    "show_dispatch_trace",
    "sparse_coo_tensor",
    "sparse_csr_tensor",
    "tls_is_dispatch_key_excluded",
    "tls_is_dispatch_key_included",
    "tls_set_dispatch_key_excluded",
    "tls_set_dispatch_key_included",
    "trace",
    "vmap",
]


_LATER = {
    "array_api": (),
    "func": (),
    "profiler": ("profile", "record_function"),
    "library.autocast_registration": ("register_autocast",),
    "library.autograd_registration": ("register_autograd",),
    "library.custom_operator": ("CustomOpDef", "custom_op"),
    "local_state.dispatch_trace": ("capture_dispatch_trace", "show_dispatch_trace"),
    "local_state.numpy_dtype_promotion": ("numpy_dtype_promotion",),
    "local_state.fake_impl": ("get_ctx",),
    "library.fake_registration": ("impl_abstract", "register_fake"),
    "modes.flop_counter": ("FlopCounterMode", "register_flop_formula"),
    "functionalities.cpu_fallback": ("CpuFallbackWarning", "cpu_fallback", "cpu_fallback_counts"),
    "functorch.vmap": ("vmap",),
    "library.kernel_registration": ("register_kernel",),
    "tensors.layout_creation": (
        "nested_tensor",
        "nested_tensor_from_jagged",
        "quantize_per_tensor",
        "sparse_coo_tensor",
        "sparse_csr_tensor",
    ),
    "modes.logging_mode": ("LoggingMode",),
    "optests.opcheck": ("opcheck",),
    "library.safe_kernel_function": ("SafeKernelFunction", "get_kernel"),
    "library.torch_dispatch_registration": ("register_torch_dispatch",),
    "tracing": ("Graph", "Tracer", "load_graph", "save_graph", "trace"),
    "library.jvp_registration": ("register_jvp",),
    "library.vmap_registration": ("register_vmap",),
}
"""Lazily imported modules, and their public names: either triggers the import on first use."""
_MODULE_OF_NAME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return import_module(f"opdispatch.{name}")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"opdispatch.{_MODULE_OF_NAME[name]}"), name)
    globals()[name] = value  # the next access bypasses __getattr__
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

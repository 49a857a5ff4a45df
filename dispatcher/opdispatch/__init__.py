"""PyTorch's operator dispatcher, stand-alone: the library for use inside one process.

    from opdispatch import Library, ops

    lib = Library("math", "DEF")
    lib.define("add(Tensor x, Tensor y) -> Tensor")
    lib.impl("add", lambda x, y: x + y, "CPU")
    ops.math.add(x, y)

The package, from the bottom up; a module imports only from its own entry and those above. What few
programs use, such as ``func`` and ``tracing``, is imported when one of its names is first used:

    errors                                      what is raised on purpose
    dispatch_key, dispatch_key_set              keys and sets of keys
    scalar_type, schema_type, function_schema,
    schema_default, schema_lexer,
    schema_type_parser, schema_parser,
    tag, schema_tags, schema_compatibility      the schema language
    caller_frames, trace_line, call_observer,
    local_dispatch_key_set, dispatch_trace,
    observed_range, mode_decorator, grad_mode,
    autocast_mode, dtype_promotion,
    torch_dispatch_mode, tracing_state,
    fake_impl                                   what a task has switched on
    arrays/                                     arrays of any library as tensors
    generator                                   where random numbers come from
    autograd/                                   the graph of what was called, and the way back
    tensor_indexing, tensor_operators,
    tensor_layouts, tensor_math_bits,
    tensor_names, tensor_exchange, tensor,
    layout_creation                             the tensor
    basic_conversion, argument_conversion,
    infer_schema, read_only_arguments           Python's values and functions in its terms
    generated_source, named_results, signature,
    boxing, kernel_function                             arguments, stacks and kernels
    registration, registration_listener,
    dispatch_table                              what is registered, and which kernel wins
    attribute_stores,
    operator_state, operator_dump, operator_entry,
    call_watch, op_overload_names, operator_handle,
    inspection,
    argument_source, call_source,
    compiled_call                               one operator
    functorch/                                  vmap and grad: levels of transforms
    functionalization/                          programs without aliases and writes
    functionalities/                            what the functionality keys do, and cpu_fallback
    signature_check, left_right, name_table, transaction,
    registry, waiting, similar_names,
    dispatcher                                  all operators
    overload_types, ops, python_signature,
    library_arguments, unload_hooks, library,
    registration_target, autocast_registration,
    autograd_registration, fake_registration,
    kernel_registration,
    torch_dispatch_registration,
    vmap_registration, jvp_registration,
    backend_selection, result_checks,
    custom_operator, safe_kernel_function       how they are called and registered
    func                                        vmap, grad and kin, by the names of torch.func
    tracing/                                    graphs of what was called
    logging_mode, array_flops, flop_counter     modes that show what is called, and what it takes
    profiler/                                   how long it takes, and where
    array_operators/                            the standard operators
    array_derivatives/                          their derivatives
    array_batching/                             how vmap batches them
    array_autocast                              what autocast casts for them
    array_functionalization                     what writes to views of theirs come to
    array_library                               all of these, loaded
    array_api/                                  the array API standard over them
    random_operators/, random_library           random numbers
    fake_tensor, deferred_init                  shapes without elements, and those later
    optests/                                    whether operators are what they are said to be
"""

from importlib import import_module
from typing import TYPE_CHECKING

# From the bottom up, like the map, for few imports to be made within others: deep in a nest of
# them a call may lie across two chunks of Python's stack, and then maps memory each time.
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
from opdispatch.dispatch_key import BackendComponent, DispatchKey, parse_dispatch_key
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.function_schema import Argument, FunctionSchema, OperatorName
from opdispatch.tag import Tag
from opdispatch.schema_parser import parse_schema
from opdispatch.trace_line import TraceLine
from opdispatch.local_dispatch_key_set import (
    ExcludeDispatchKeyGuard,
    ForceDispatchKeyGuard,
    IncludeDispatchKeyGuard,
    local_dispatch_key_set,
    tls_is_dispatch_key_excluded,
    tls_is_dispatch_key_included,
    tls_set_dispatch_key_excluded,
    tls_set_dispatch_key_included,
)
from opdispatch.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from opdispatch.autocast_mode import (
    autocast,
    clear_autocast_cache,
    get_autocast_dtype,
    is_autocast_cache_enabled,
    is_autocast_enabled,
)
from opdispatch.torch_dispatch_mode import TorchDispatchMode
from opdispatch.tracing_state import TracerWarning
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
from opdispatch.generator import Generator, default_generator, manual_seed
from opdispatch.tensor import Tensor
from opdispatch.infer_schema import Device, infer_schema
from opdispatch.kernel_function import KernelFunction
from opdispatch.registration import Registration, RegistrationHandle
from opdispatch.registration_listener import RegistrationListener
from opdispatch.operator_handle import OperatorHandle
from opdispatch.functionalization import functionalize
from opdispatch.functionalities.batching import BatchingFallbackWarning
from opdispatch.transaction import Transaction
from opdispatch.dispatcher import Dispatcher
from opdispatch.library import (
    Library,
    default_dispatcher,
    define,
    fallthrough_kernel,
    impl,
    ops,
)
# isort: on

if TYPE_CHECKING:
    from opdispatch import array_api, func
    from opdispatch.autocast_registration import register_autocast
    from opdispatch.autograd_registration import register_autograd
    from opdispatch.custom_operator import CustomOpDef, custom_op
    from opdispatch.dispatch_trace import capture_dispatch_trace, show_dispatch_trace
    from opdispatch.dtype_promotion import numpy_dtype_promotion
    from opdispatch.fake_impl import get_ctx
    from opdispatch.fake_registration import impl_abstract, register_fake
    from opdispatch.flop_counter import FlopCounterMode, register_flop_formula
    from opdispatch.functionalities.cpu_fallback import (
        CpuFallbackWarning,
        cpu_fallback,
        cpu_fallback_counts,
    )
    from opdispatch.functorch.vmap import vmap
    from opdispatch.jvp_registration import register_jvp
    from opdispatch.kernel_registration import register_kernel
    from opdispatch.layout_creation import (
        nested_tensor,
        nested_tensor_from_jagged,
        quantize_per_tensor,
        sparse_coo_tensor,
        sparse_csr_tensor,
    )
    from opdispatch.logging_mode import LoggingMode
    from opdispatch.optests.opcheck import opcheck
    from opdispatch.profiler.profile import profile
    from opdispatch.profiler.record_function import record_function
    from opdispatch.safe_kernel_function import SafeKernelFunction, get_kernel
    from opdispatch.torch_dispatch_registration import register_torch_dispatch
    from opdispatch.tracing import Graph, Tracer, load_graph, save_graph, trace
    from opdispatch.vmap_registration import register_vmap

OpOverload = OperatorHandle
"""PyTorch's Python name for it."""

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
    "autocast_registration": ("register_autocast",),
    "autograd_registration": ("register_autograd",),
    "custom_operator": ("CustomOpDef", "custom_op"),
    "dispatch_trace": ("capture_dispatch_trace", "show_dispatch_trace"),
    "dtype_promotion": ("numpy_dtype_promotion",),
    "fake_impl": ("get_ctx",),
    "fake_registration": ("impl_abstract", "register_fake"),
    "flop_counter": ("FlopCounterMode", "register_flop_formula"),
    "functionalities.cpu_fallback": ("CpuFallbackWarning", "cpu_fallback", "cpu_fallback_counts"),
    "functorch.vmap": ("vmap",),
    "kernel_registration": ("register_kernel",),
    "layout_creation": (
        "nested_tensor",
        "nested_tensor_from_jagged",
        "quantize_per_tensor",
        "sparse_coo_tensor",
        "sparse_csr_tensor",
    ),
    "logging_mode": ("LoggingMode",),
    "optests.opcheck": ("opcheck",),
    "safe_kernel_function": ("SafeKernelFunction", "get_kernel"),
    "torch_dispatch_registration": ("register_torch_dispatch",),
    "tracing": ("Graph", "Tracer", "load_graph", "save_graph", "trace"),
    "jvp_registration": ("register_jvp",),
    "vmap_registration": ("register_vmap",),
}
"""The modules that are imported when they, or one of these names of theirs, are first used."""
_MODULE_OF_NAME = {name: module for module, names in _LATER.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _LATER:
        return import_module(f"opdispatch.{name}")
    if name not in _MODULE_OF_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"opdispatch.{_MODULE_OF_NAME[name]}"), name)
    globals()[name] = value  # the next access does not come here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

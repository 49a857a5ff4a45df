"""PyTorch's operator dispatcher, stand-alone: the library for use inside one process.

    from opdispatch import Library, ops

    lib = Library("math", "DEF")
    lib.define("add(Tensor x, Tensor y) -> Tensor")
    lib.impl("add", lambda x, y: x + y, "CPU")
    ops.math.add(x, y)

The package, from the bottom up; a module imports only from its own entry and those above:

    errors                                      what is raised on purpose
    dispatch_key, dispatch_key_set              keys and sets of keys
    scalar_type, schema_type, function_schema,
    schema_default, schema_lexer,
    schema_type_parser, schema_parser,
    schema_compatibility                        the schema language
    arrays/, tensor_operators, tensor           what counts as a tensor
    basic_conversion, argument_conversion,
    infer_schema                                Python's values and functions in its terms
    trace_line, local_dispatch_key_set, trace,
    mode_decorator, grad_mode, autocast_mode    what a task has switched on
    signature, boxing, kernel_function          arguments, stacks and kernels
    registration, dispatch_table                what is registered, and which kernel wins
    operator_state, operator_dump, operator_entry,
    operator_handle, inspection, call_source,
    compiled_call                               one operator
    functionalities/                            what the functionality keys do, and cpu_fallback
    signature_check, left_right, name_table, transaction,
    registry, waiting, dispatcher               all operators
    ops, library                                how they are called and registered
    array_operators/, array_library             the standard operators
    array_api/                                  the array API standard over them
"""

from opdispatch.arrays import ArrayBackend, BackendRegistration, MetaArray, register_backend
from opdispatch.autocast_mode import autocast, get_autocast_dtype, is_autocast_enabled
from opdispatch.dispatch_key import BackendComponent, DispatchKey, parse_dispatch_key
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.dispatcher import Dispatcher, RegistrationListener
from opdispatch.errors import (
    AmbiguousKernelError,
    ArgumentError,
    DeviceError,
    DeviceMemoryError,
    DispatchKeyError,
    DuplicateDefinitionError,
    InternalError,
    KernelTypeError,
    LibraryError,
    NoKernelError,
    OpdispatchError,
    OperatorNotFoundError,
    RegistrationError,
    ReturnError,
    SchemaError,
    SchemaMismatchError,
    WaitTimeoutError,
)
from opdispatch.function_schema import Argument, FunctionSchema, OperatorName
from opdispatch.functionalities.cpu_fallback import (
    CpuFallbackWarning,
    cpu_fallback,
    cpu_fallback_counts,
)
from opdispatch.grad_mode import (
    enable_grad,
    inference_mode,
    is_grad_enabled,
    is_inference_mode_enabled,
    no_grad,
    set_grad_enabled,
)
from opdispatch.infer_schema import infer_schema
from opdispatch.kernel_function import KernelFunction
from opdispatch.library import (
    Library,
    default_dispatcher,
    define,
    fallthrough_kernel,
    impl,
    ops,
)
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
from opdispatch.operator_handle import OperatorHandle
from opdispatch.registration import Registration, RegistrationHandle
from opdispatch.schema_parser import parse_schema
from opdispatch.tensor import Tensor
from opdispatch.trace import capture_dispatch_trace, show_dispatch_trace
from opdispatch.trace_line import TraceLine
from opdispatch.transaction import Transaction

OpOverload = OperatorHandle
"""PyTorch's Python name for it."""

__all__ = [
    "AmbiguousKernelError",
    "Argument",
    "ArgumentError",
    "ArrayBackend",
    "BackendComponent",
    "BackendRegistration",
    "CpuFallbackWarning",
    "DeviceError",
    "DeviceMemoryError",
    "DispatchKey",
    "DispatchKeyError",
    "DispatchKeySet",
    "Dispatcher",
    "DuplicateDefinitionError",
    "ExcludeDispatchKeyGuard",
    "ForceDispatchKeyGuard",
    "FunctionSchema",
    "IncludeDispatchKeyGuard",
    "InternalError",
    "KernelFunction",
    "KernelTypeError",
    "Library",
    "LibraryError",
    "MetaArray",
    "NoKernelError",
    "OpOverload",
    "OpdispatchError",
    "OperatorHandle",
    "OperatorName",
    "OperatorNotFoundError",
    "Registration",
    "RegistrationError",
    "RegistrationHandle",
    "RegistrationListener",
    "ReturnError",
    "SchemaError",
    "SchemaMismatchError",
    "Tensor",
    "TraceLine",
    "Transaction",
    "WaitTimeoutError",
    "autocast",
    "capture_dispatch_trace",
    "cpu_fallback",
    "cpu_fallback_counts",
    "default_dispatcher",
    "define",
    "enable_grad",
    "fallthrough_kernel",
    "get_autocast_dtype",
    "impl",
    "infer_schema",
    "inference_mode",
    "is_autocast_enabled",
    "is_grad_enabled",
    "is_inference_mode_enabled",
    "local_dispatch_key_set",
    "no_grad",
    "ops",
    "parse_dispatch_key",
    "parse_schema",
    "register_backend",
    "set_grad_enabled",
    "show_dispatch_trace",
    "tls_is_dispatch_key_excluded",
    "tls_is_dispatch_key_included",
    "tls_set_dispatch_key_excluded",
    "tls_set_dispatch_key_included",
]

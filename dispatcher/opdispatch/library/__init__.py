"""Registering operators and kernels, and calling them: ``Library``, ``ops`` and ``custom_op``.

library                      libraries, and the default dispatcher
ops                          operators as attributes
overload_types               the types of overloads
python_signature             a schema as a Python signature
registration_arguments       checks the arguments of registrations
unload_hooks                 functions called when a library is unloaded
warmup                       calls made before a library serves
registration_target          the operator and library that a registration goes to
infer_schema                 infers a schema from a function's annotations
autocast_registration        casting rules
autograd_registration        derivatives
jvp_registration             derivatives in forward mode
fake_registration            fake kernels
kernel_registration          kernels
torch_dispatch_registration  handlers for modes and tensor classes
vmap_registration            batching rules
backend_selection            chooses the backend of operators without tensor arguments
result_checks                checks that results do not alias arguments
custom_operator              defines operators from functions
safe_kernel_function         a kernel that outlives its registration
"""

from opdispatch.library.library import (
    Library,
    default_dispatcher,
    define,
    fallthrough_kernel,
    impl,
    infer_schema,
    ops,
)

_scoped_library = Library  # PyTorch's name for a library that is closed at the end of a block

__all__ = [
    "Library",
    "default_dispatcher",
    "define",
    "fallthrough_kernel",
    "impl",
    "infer_schema",
    "ops",
]

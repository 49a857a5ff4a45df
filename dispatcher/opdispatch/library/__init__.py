"""Registering operators and kernels, and calling them: ``Library``, ``ops`` and ``custom_op``.

library                      libraries, and the dispatcher that all share
ops                          operators as attributes
overload_types               the types of overloads
python_signature             a schema as a signature of Python
arguments                    arguments of registrations
unload_hooks                 what runs as a library goes
warmup                       calls that are made before a library serves
registration_target          what a registration is for
infer_schema                 a schema out of a function's annotations
autocast_registration        casting rules
autograd_registration        derivatives
jvp_registration             derivatives in forward mode
fake_registration            fake kernels
kernel_registration          kernels
torch_dispatch_registration  rules for modes and tensor classes
vmap_registration            batching rules
backend_selection            which backend makes a tensor
result_checks                whether results are new
custom_operator              operators out of functions
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

_scoped_library = Library  # PyTorch's name of a library that is closed at the end of a block

__all__ = [
    "Library",
    "default_dispatcher",
    "define",
    "fallthrough_kernel",
    "impl",
    "infer_schema",
    "ops",
]

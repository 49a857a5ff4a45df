"""The exceptions that the dispatcher raises.

    OpdispatchError                      base class of all of them
    ├── RegistrationError                a registration is invalid (also a RuntimeError)
    │   ├── SchemaError                  a schema string does not parse (also a ValueError)
    │   ├── DuplicateDefinitionError     an operator or a namespace is defined twice
    │   ├── SchemaMismatchError          two registrations disagree on a signature
    │   ├── DispatchKeyError             a dispatch key does not exist or does not apply here
    │   ├── LibraryError                 a library's kind or namespace is invalid (also ValueError)
    │   └── KernelTypeError              a registered object is not a kernel (also a TypeError)
    ├── OperatorNotFoundError            an operator is not defined (also an AttributeError)
    ├── ArgumentError                    arguments do not fit a schema (also Type- and RuntimeError)
    │   └── ScalarRangeError             a number is out of a dtype's range (also an OverflowError)
    ├── NoKernelError                    no kernel for the tensors' keys (also NotImplementedError)
    ├── AmbiguousKernelError             two kernels apply equally to a key (also RuntimeError)
    ├── AutogradError                    gradients cannot be computed (also a RuntimeError)
    ├── GraphError                       a graph cannot be loaded, saved or run (also a ValueError)
    ├── DataDependentOutputError         a tensor without elements was read (also RuntimeError)
    ├── TransformError                   vmap or grad cannot transform this (also a RuntimeError)
    ├── ReturnError                      a result does not fit the schema (also a RuntimeError)
    ├── OpCheckError                     opcheck has found a defect (also an AssertionError)
    ├── DeviceError                      a device or its arrays cannot be used (also RuntimeError)
    │   ├── DeviceMemoryError            a device is out of memory (also a MemoryError)
    │   └── DeviceLostError              a device has failed for good in this process
    └── WaitTimeoutError                 a registration was not made in time (also a TimeoutError)
    InternalError                        a bug in opdispatch; not an OpdispatchError

The service defines further subclasses of OpdispatchError in ``opdispatch_wire.errors``. Each class
has a ``code``, which identifies it between processes and never changes once released.
"""

from __future__ import annotations

from typing import ClassVar


class OpdispatchError(Exception):
    """Base class of all errors that opdispatch raises.

    ``message`` is one sentence that says what was wrong, where, and what was expected. ``hint``
    says how to fix it. ``facts`` has the details by name, as strings, for programs.
    """

    code: ClassVar[str] = "opdispatch"
    by_code: ClassVar[dict[str, type[OpdispatchError]]] = {}

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "code" not in cls.__dict__:
            raise TypeError(f"{cls.__name__} needs a code of its own")
        taken = OpdispatchError.by_code.setdefault(cls.code, cls)
        if taken is not cls:
            raise TypeError(f"{cls.__name__} reuses the code {cls.code!r} of {taken.__name__}")

    def __init__(self, message: str, *, hint: str = "", **facts: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.facts = facts

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message


OpdispatchError.by_code[OpdispatchError.code] = OpdispatchError


class RegistrationError(OpdispatchError, RuntimeError):
    """A registration was rejected; the registry is unchanged."""

    code = "registration"


class SchemaError(RegistrationError, ValueError):
    """A schema string does not parse; the message shows the text and the column."""

    code = "schema"


class DuplicateDefinitionError(RegistrationError):
    """An operator or a namespace's DEF library already exists; the message has both sites."""

    code = "duplicate_definition"


class SchemaMismatchError(RegistrationError):
    """A kernel's signature and the operator's schema, or another kernel's, disagree."""

    code = "schema_mismatch"


class DispatchKeyError(RegistrationError, ValueError):
    """There is no dispatch key of that name, or it cannot be used for this."""

    code = "dispatch_key"


class LibraryError(RegistrationError, ValueError):
    """A library cannot be of that kind, or have that namespace."""

    code = "library"


class KernelTypeError(RegistrationError, TypeError):
    """An object registered as a kernel cannot be called."""

    code = "kernel_type"


class OperatorNotFoundError(OpdispatchError, AttributeError):
    """No operator of that name is defined (any more)."""

    code = "operator_not_found"


class ArgumentError(OpdispatchError, TypeError, RuntimeError):
    """The arguments of a call do not fit the operator's schema.

    For wrong arguments of an operator, PyTorch raises RuntimeError; a Python function TypeError.
    """

    code = "argument"


class ScalarRangeError(ArgumentError, OverflowError):
    """A Python number is out of the range of an array's dtype.

    Also an OverflowError, which NumPy and ``array_api_strict`` raise.
    """

    code = "scalar_range"


class NoKernelError(OpdispatchError, NotImplementedError):
    """The operator has no kernel for the dispatch key that the call arrived at."""

    code = "no_kernel"


class AmbiguousKernelError(OpdispatchError, RuntimeError):
    """Two kernels have an equal claim to the slot that the call arrived at."""

    code = "ambiguous_kernel"


class DataDependentOutputError(OpdispatchError, RuntimeError):
    """Code read elements of a tensor that has none: a fake tensor, or one on ``meta``."""

    code = "data_dependent_output"


class ReturnError(OpdispatchError, RuntimeError):
    """A kernel's results do not match the returns of the operator's schema."""

    code = "return"


class OpCheckError(OpdispatchError, AssertionError):
    """``opcheck`` found an operator whose registrations are incorrect or contradict each other."""

    code = "op_check"


class AutogradError(OpdispatchError, RuntimeError):
    """Gradients cannot be recorded or computed in this way."""

    code = "autograd"


class GraphError(OpdispatchError, ValueError):
    """A traced graph does not exist, cannot be saved or loaded, or cannot run."""

    code = "graph"


class TransformError(OpdispatchError, RuntimeError):
    """A function cannot be transformed by ``vmap``, ``grad`` or another function transform."""

    code = "transform"


class DeviceError(OpdispatchError, RuntimeError):
    """A device does not exist, has no backend in this process, or has failed."""

    code = "device"


class DeviceMemoryError(DeviceError, MemoryError):
    """A device is out of memory.

    ``facts`` has, if known, ``device``, and in bytes: ``asked``, the failed allocation; ``free``
    and ``total`` memory of the device; and of the array library's pool there, ``held`` by it and
    ``used`` by arrays.
    """

    code = "device_memory"


class DeviceLostError(DeviceError):
    """A device has failed; the process that used it can never use it again.

    ``facts["device"]`` is its name.
    """

    code = "device_lost"


class WaitTimeoutError(OpdispatchError, TimeoutError):
    """An awaited registration was not made before the timeout."""

    code = "wait_timeout"


class InternalError(RuntimeError):
    """An invariant of opdispatch does not hold. Please report it; this is never your fault."""

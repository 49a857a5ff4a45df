"""Everything the dispatcher raises on purpose.

    OpdispatchError                      catch this
    ├── RegistrationError                the code that registers is wrong (also a RuntimeError)
    │   ├── SchemaError                  a schema string does not parse (also a ValueError)
    │   ├── DuplicateDefinitionError     an operator or a namespace is defined twice
    │   ├── SchemaMismatchError          two registrations disagree on a signature
    │   ├── DispatchKeyError             no such dispatch key, or not one for this purpose
    │   ├── LibraryError                 a library cannot be of that kind or name (also ValueError)
    │   └── KernelTypeError              a registered object is not a kernel (also a TypeError)
    ├── OperatorNotFoundError            it is not defined (also an AttributeError)
    ├── ArgumentError                    the arguments do not fit (also Type- and RuntimeError)
    │   └── ScalarRangeError             no element can be that number (also an OverflowError)
    ├── NoKernelError                    no kernel for the tensors' keys (also NotImplementedError)
    ├── AmbiguousKernelError             two kernels have equal right to a slot (also RuntimeError)
    ├── AutogradError                    gradients cannot be had so (also a RuntimeError)
    ├── GraphError                       a graph cannot be read, kept or run (also a ValueError)
    ├── DataDependentOutputError         a tensor without elements was read (also RuntimeError)
    ├── TransformError                   vmap or grad cannot transform this (also a RuntimeError)
    ├── ReturnError                      a kernel broke its schema's promise (also a RuntimeError)
    ├── OpCheckError                     opcheck has found something (also an AssertionError)
    ├── DeviceError                      a device or its arrays cannot be used (also RuntimeError)
    │   ├── DeviceMemoryError            a device has no room (also a MemoryError)
    │   └── DeviceLostError              a device is lost for the process that used it
    └── WaitTimeoutError                 another interpreter never registered (also a TimeoutError)
    InternalError                        our bug: never caught, never mapped, always reported

The service adds its own below the same root, in ``opdispatch_wire.errors``. Each class has
a ``code`` that never changes once released: it is how an error crosses a process boundary.
"""

from __future__ import annotations

from typing import ClassVar


class OpdispatchError(Exception):
    """The root of every error that opdispatch raises on purpose.

    ``message`` is one sentence: what was wrong, where, and what was expected. ``hint`` says
    what to do about it. ``facts`` are the same things by name, for programs.
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
    """A registration was refused; the registry is as it was before."""

    code = "registration"


class SchemaError(RegistrationError, ValueError):
    """A schema string does not parse; the message shows the text and the column."""

    code = "schema"


class DuplicateDefinitionError(RegistrationError):
    """An operator, or the DEF library of a namespace, exists already; names both places."""

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
    """A Python number is none that an element of an array can be.

    NumPy and the array API standard's own library raise OverflowError.
    """

    code = "scalar_range"


class NoKernelError(OpdispatchError, NotImplementedError):
    """The operator has no kernel for the dispatch key that the call arrived at."""

    code = "no_kernel"


class AmbiguousKernelError(OpdispatchError, RuntimeError):
    """Two kernels have an equal claim to the slot that the call arrived at."""

    code = "ambiguous_kernel"


class DataDependentOutputError(OpdispatchError, RuntimeError):
    """Elements were asked for of a tensor that has none: a fake one, or one on ``meta``."""

    code = "data_dependent_output"


class ReturnError(OpdispatchError, RuntimeError):
    """A kernel returned something that the operator's schema does not promise."""

    code = "return"


class OpCheckError(OpdispatchError, AssertionError):
    """``opcheck`` found that an operator does not match its registrations."""

    code = "op_check"


class AutogradError(OpdispatchError, RuntimeError):
    """Gradients cannot be recorded, or asked for, in this way."""

    code = "autograd"


class GraphError(OpdispatchError, ValueError):
    """A traced graph is not there, cannot be kept in a file or read from it, or cannot run."""

    code = "graph"


class TransformError(OpdispatchError, RuntimeError):
    """A function cannot be transformed by ``vmap``, ``grad`` and kin."""

    code = "transform"


class DeviceError(OpdispatchError, RuntimeError):
    """There is no such device, nothing here can hold its arrays, or it has failed."""

    code = "device"


class DeviceMemoryError(DeviceError, MemoryError):
    """A device has no room for an array.

    Where they are known, ``facts`` has ``device``, and as numbers of bytes ``asked``, ``free``,
    ``total``, and what the pool of the array library has there, ``held``, and hands out, ``used``.
    """

    code = "device_memory"


class DeviceLostError(DeviceError):
    """A device has failed, so that the process which used it can never use it again.

    ``facts["device"]`` is its name.
    """

    code = "device_lost"


class WaitTimeoutError(OpdispatchError, TimeoutError):
    """The awaited registration was not made in time."""

    code = "wait_timeout"


class InternalError(RuntimeError):
    """An invariant of opdispatch does not hold. Please report it; this is never your fault."""

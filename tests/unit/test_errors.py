"""Every error has a class, a code that programs may rely on, and says what to do."""

import builtins
import inspect

import pytest

from opdispatch import errors
from opdispatch.errors import InternalError, OpdispatchError

CLASSES = [
    cls
    for _, cls in inspect.getmembers(errors, inspect.isclass)
    if issubclass(cls, OpdispatchError) and cls.__module__ == errors.__name__
]

# Released codes never change: they are how an error crosses a process boundary.
CODES = {
    "opdispatch": "OpdispatchError",
    "registration": "RegistrationError",
    "schema": "SchemaError",
    "duplicate_definition": "DuplicateDefinitionError",
    "schema_mismatch": "SchemaMismatchError",
    "dispatch_key": "DispatchKeyError",
    "library": "LibraryError",
    "kernel_type": "KernelTypeError",
    "operator_not_found": "OperatorNotFoundError",
    "argument": "ArgumentError",
    "scalar_range": "ScalarRangeError",
    "no_kernel": "NoKernelError",
    "ambiguous_kernel": "AmbiguousKernelError",
    "autograd": "AutogradError",
    "graph": "GraphError",
    "data_dependent_output": "DataDependentOutputError",
    "transform": "TransformError",
    "return": "ReturnError",
    "op_check": "OpCheckError",
    "device": "DeviceError",
    "device_memory": "DeviceMemoryError",
    "device_lost": "DeviceLostError",
    "wait_timeout": "WaitTimeoutError",
}


def test_the_codes_are_the_released_ones():
    assert {cls.code: cls.__name__ for cls in CLASSES} == CODES


def test_a_class_is_found_by_its_code():
    assert {code: OpdispatchError.by_code[code].__name__ for code in CODES} == CODES


def test_a_class_cannot_reuse_a_code():
    with pytest.raises(TypeError, match="reuses the code 'argument' of ArgumentError"):
        type("Impostor", (OpdispatchError,), {"code": "argument"})
    assert OpdispatchError.by_code["argument"] is errors.ArgumentError


def test_a_class_cannot_inherit_its_code():
    with pytest.raises(TypeError, match="needs a code of its own"):
        type("Nameless", (errors.ArgumentError,), {})


@pytest.mark.parametrize(
    ("ours", "builtin"),
    [
        ("RegistrationError", "RuntimeError"),
        ("SchemaError", "ValueError"),
        ("SchemaError", "RuntimeError"),
        ("DispatchKeyError", "ValueError"),
        ("LibraryError", "ValueError"),
        ("LibraryError", "RuntimeError"),
        ("KernelTypeError", "TypeError"),
        ("KernelTypeError", "RuntimeError"),
        ("OperatorNotFoundError", "AttributeError"),
        ("ArgumentError", "TypeError"),
        ("ArgumentError", "RuntimeError"),
        ("ScalarRangeError", "OverflowError"),
        ("ScalarRangeError", "TypeError"),
        ("NoKernelError", "NotImplementedError"),
        ("AmbiguousKernelError", "RuntimeError"),
        ("AutogradError", "RuntimeError"),
        ("ReturnError", "RuntimeError"),
        ("DeviceError", "RuntimeError"),
        ("DeviceMemoryError", "MemoryError"),
        ("WaitTimeoutError", "TimeoutError"),
    ],
)
def test_code_that_knows_only_the_builtin_error_catches_ours(ours, builtin):
    assert issubclass(getattr(errors, ours), getattr(builtins, builtin))


def test_an_error_of_ours_is_caught_by_its_root_and_a_bug_is_not():
    assert all(issubclass(cls, OpdispatchError) for cls in CLASSES)
    assert not issubclass(InternalError, OpdispatchError)


def test_an_error_is_its_message_with_the_hint_in_brackets():
    assert str(errors.ArgumentError("t::f takes no arguments")) == "t::f takes no arguments"
    error = errors.NoKernelError("t::f has no kernel", hint="load one", operator="t::f")
    assert str(error) == "t::f has no kernel (load one)"
    assert (error.message, error.hint) == ("t::f has no kernel", "load one")
    assert error.facts == {"operator": "t::f"}


def test_the_tree_in_the_documentation_names_every_class():
    assert all(cls.__name__ in errors.__doc__ for cls in (*CLASSES, InternalError))

"""The call of a kernel, and the errors that are the kernel's."""

import pytest

from opdispatch.errors import InternalError, NoKernelError
from opdispatch_server.operator_names import parse_operator_name
from opdispatch_server.worker.execution.kernel_call import call_kernel
from opdispatch_wire.errors import KernelError


class Choice:
    """A kernel that returns its stack, or raises an error."""

    name = parse_operator_name("a::b")

    def __init__(self, error=None):
        self._error = error

    def call(self, stack):
        if self._error is not None:
            raise self._error
        return stack


def call(error=None):
    return call_kernel(Choice(error), [1, 2], lambda: "here")


def test_the_results_are_those_of_the_kernel():
    assert call() == [1, 2]


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), KeyboardInterrupt()])
def test_error_of_a_kernel_becomes_kernel_error(error):
    with pytest.raises(KernelError) as raised:
        call(error)
    assert raised.value.__cause__ is error
    assert raised.value.facts["operator"] == "a::b"
    assert raised.value.facts["interpreter"] == "here"


def test_errors_of_the_dispatch_of_the_call_itself_are_not_the_kernels():
    own = NoKernelError("no kernel", operator="a::b")
    with pytest.raises(NoKernelError) as raised:
        call(own)
    assert raised.value is own
    with pytest.raises(InternalError):
        call(InternalError("a bug"))


def test_error_of_a_nested_call_is_an_error_of_the_kernel():
    with pytest.raises(KernelError):
        call(NoKernelError("no kernel", operator="c::d"))

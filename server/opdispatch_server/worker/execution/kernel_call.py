"""The call of a kernel, and which errors are the kernel's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from opdispatch.errors import AmbiguousKernelError, InternalError, NoKernelError, ReturnError
from opdispatch_server.worker.execution.raised_errors import error_of_kernel
from opdispatch_server.worker.libraries.chosen_kernel import ChosenKernel

# Errors that the dispatch of the call itself may raise after its kernel was chosen: a redispatch
# without a kernel, a result that violates the schema.
_OWN_ERRORS = (NoKernelError, AmbiguousKernelError, ReturnError)


def call_kernel(
    choice: ChosenKernel, stack: list[Any], interpreter: Callable[[], str]
) -> list[Any]:
    """Call a kernel, in the interpreter of that name.

    Raises KernelError and other errors of ``error_of_kernel`` for what it raises, and
    InternalError.
    """
    try:
        return choice.call(stack)
    except InternalError:
        raise
    except BaseException as error:  # a kernel may raise anything, and the interpreter survives it
        operator = str(choice.name)
        if isinstance(error, _OWN_ERRORS) and error.facts.get("operator") == operator:
            raise
        name = interpreter()
        what = f"the kernel of {operator} in interpreter {name}"
        facts = {"operator": operator, "interpreter": name}
        raise error_of_kernel(error, what, facts) from error

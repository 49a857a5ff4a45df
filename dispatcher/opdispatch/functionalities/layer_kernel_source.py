"""Source of kernels that do something before or after the kernel below them: the base class.

A layer does its part and goes on with the kernel below it, which is looked up when the layer is
made (``KernelFunction.from_layer``). Its text is written for one schema, since it costs each
call something to collect arguments that could be any::

    def _make(_below):
        _kernel_below = _below.kernel
        def _kernel(_a0, _a1, *, axis):
            if there is nothing to do: return _kernel_below(_a0, _a1, axis=axis)
            _result = _below(_a0, _a1, axis=axis)
            ...
            return _result
        return _kernel

All names of ours start with ``_``: an argument may have any other. Keyword-only arguments with
names that cannot be those of parameters come in ``_named``.
"""

from __future__ import annotations

import functools
import keyword
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.boxing.generated_source import compile_function
from opdispatch.boxing.kernel_function import FindKeys, KernelFunction
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tensors.tensor import Tensor

FindOperator = Callable[[], OperatorHandle]
"""Called in each call: a handle taken before its operator is published stays slow."""

_SCOPE: dict[str, Any] = {
    "__name__": __name__,  # so that tracebacks of callers know whose lines these are
    "_Tensor": Tensor,
    "_type": type,
    "_isinstance": isinstance,
    "_len": len,
    "_tuple": tuple,
    "_list": list,
    "_enumerate": enumerate,
}


class LayerText(ABC):
    """The source of a kernel for one schema."""

    def __init__(self, schema: FunctionSchema) -> None:
        self.arguments = arguments = schema.arguments
        self.returns = [returned.type for returned in schema.returns]
        usable = [_can_be_parameter(a.name) for a in arguments if a.kwarg_only]
        by_name = all(usable)
        self.names = [
            a.name if a.kwarg_only and by_name else f"_a{n}" for n, a in enumerate(arguments)
        ]
        pairs = list(zip(self.names, arguments, strict=True))
        self.positional = [name for name, a in pairs if not a.kwarg_only]
        self.keyword_only = [(a.name, name) for name, a in pairs if a.kwarg_only]
        """The keyword-only arguments: their names in the schema and in the source."""
        if by_name:
            star = ["*"] if self.keyword_only else []
            self.parameters = [*self.positional, *star, *(n for _, n in self.keyword_only)]
            self.passed = [*self.positional, *(f"{n}={n}" for _, n in self.keyword_only)]
            self.first = []
        else:
            self.parameters = self.passed = [*self.positional, "**_named"]
            self.first = [f"{name} = _named[{given!r}]" for given, name in self.keyword_only]

    is_for_gradients = False
    """Whether a call without arguments that require gradients only calls the kernel below."""

    def compile(self, title: str, keys_below: FindKeys, **scope: Any) -> KernelFunction:
        """Compile the kernel, called ``title``. ``scope`` has what its own lines refer to.

        It is compiled when a call first arrives there: of many operators, few are called.
        """

        @functools.cache
        def compiled() -> Callable[[Any], Any]:
            make: Callable[[Any], Any] = compile_function(
                title, self.text(), _SCOPE | scope, "_make"
            )
            return make

        def make(below: Any) -> Any:
            return compiled()(below)

        make.__name__ = make.__qualname__ = title
        return KernelFunction.from_layer(make, keys_below, is_for_gradients=self.is_for_gradients)

    def text(self) -> str:
        """Return the whole source."""
        head = f"def _kernel({', '.join(self.parameters)}):"
        lines = [f"    {line}" for line in (*self.first, *self.lines())]
        make = ["_kernel_below = _below.kernel", *self.made_once(), head, *lines, "return _kernel"]
        return "\n    ".join(["def _make(_below):", *make]) + "\n"

    def made_once(self) -> Sequence[str]:
        """Return lines that run when the kernel below has been found."""
        return ()

    @abstractmethod
    def lines(self) -> Sequence[str]:
        """Return the body as lines of code. The last line returns."""

    # -- for subclasses -------------------------------------------------------------------------

    def below(self) -> str:
        """Return an expression that calls the kernel below."""
        return f"_below({', '.join(self.passed)})"

    def tail_call(self) -> str:
        """Return a line that returns the result of the kernel below, as a tail call."""
        return f"return _kernel_below({', '.join(self.passed)})"


def _can_be_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")

"""Kernels for FuncTorchGradWrapper made of a function of tangents: ``register_jvp``.

Mirrors what ``torch.autograd.Function`` does with ``jvp``, for operators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import AutogradError
from opdispatch.functionalities.forward_derivative import RuleKernel, dispatched
from opdispatch.functionalities.registered_autograd import (
    SetupContext,
    check_functions,
    check_schema,
)
from opdispatch.functorch.batched_tensor import is_tensor
from opdispatch.functorch.forward_rule import ForwardRule
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

Jvp = Callable[..., Any]


class ForwardContext:
    """``ctx`` of a call whose tangents are computed; takes any attribute."""

    _materializes = True
    _for_forward: tuple[Any, ...] | None = None
    _for_backward: tuple[Any, ...] = ()

    def save_for_forward(self, *tensors: Any) -> None:
        """Keep tensors for ``jvp``."""
        self._for_forward = tensors

    def save_for_backward(self, *tensors: Any) -> None:
        """Keep tensors, unless ``save_for_forward`` does: a ``setup_context`` may serve both."""
        self._for_backward = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether ``jvp`` gets zeros for tensors without a tangent, or None."""
        self._materializes = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that were kept."""
        return self._for_backward if self._for_forward is None else self._for_forward


class RegisteredRule(ForwardRule):
    """A rule out of ``jvp(ctx, *tangents)``."""

    def __init__(
        self, schema: FunctionSchema, jvp: Jvp, setup_context: SetupContext | None
    ) -> None:
        super().__init__(schema)
        self._jvp = jvp
        self._setup_context = setup_context

    def push(
        self,
        op: OperatorHandle,
        args: Sequence[Any],
        results: Sequence[Any],
        tangents: Sequence[Any],
    ) -> Sequence[Any]:
        """Return the tangents of ``jvp``. Raises AutogradError for anything but tangents."""
        signature = op.call_signature
        inputs, named = signature.split([dispatched(each) for each in args])
        context = ForwardContext()
        if self._setup_context is not None:
            output = signature.unbox_returns([dispatched(each) for each in results])
            keywords = {"keyword_only_inputs": named} if named else {}
            self._setup_context(ctx=context, inputs=tuple(inputs), output=output, **keywords)
        given = tangents[: len(inputs)]
        if context._materializes:
            given = [_with_zeros(*pair) for pair in zip(given, inputs, strict=True)]
        found = self._jvp(context, *given)
        if not isinstance(found, tuple):
            found = (found,)
        if len(found) != len(results):
            raise self._error(
                f"{len(found)} tangents; expected {len(results)}, one for each result"
            )
        return [self._checked(*pair) for pair in zip(found, results, strict=True)]

    def _checked(self, tangent: Any, result: Any) -> Any:
        if tangent is None:
            return None
        if isinstance(result, list):
            if not isinstance(tangent, list | tuple) or len(tangent) != len(result):
                raise self._error(f"no list of {len(result)} tangents, one for each tensor in it")
            return [self._checked(*pair) for pair in zip(tangent, result, strict=True)]
        if not isinstance(tangent, Tensor):
            raise self._error(f"{type(tangent).__name__}; expected a Tensor or None")
        if not is_tensor(result):
            raise self._error("a tangent for a result that is not a tensor")
        if tuple(tangent.shape) != tuple(result.shape) or tangent.dtype != result.dtype:
            raise self._error(
                f"a tangent of shape {list(tangent.shape)} and dtype {tangent.dtype} for a result "
                f"of shape {list(result.shape)} and dtype {result.dtype}"
            )
        return tangent

    def _error(self, what: str) -> AutogradError:
        name = str(self.schema.name)
        return AutogradError(f"the jvp of {name} returned {what}", operator=name)


def _with_zeros(tangent: Any, value: Any) -> Any:
    if type(value) is list:
        given = tangent or [None] * len(value)
        return [_with_zeros(*pair) for pair in zip(given, value, strict=True)]
    if tangent is not None or not is_tensor(value) or value.dtype.kind not in DIFFERENTIABLE_KINDS:
        return tangent
    return array_namespace().zeros_like(value)


def make_registered_jvp_kernel(
    schema: FunctionSchema, jvp: Jvp, setup_context: SetupContext | None
) -> KernelFunction:
    """Return a kernel for FuncTorchGradWrapper of an operator of that schema.

    Raises RegistrationError for operators that write, give views or nothing, or whose keyword-only
    arguments are tensors, and for what cannot be called.
    """
    check_schema(schema, "jvp")
    check_functions(schema, "jvp", jvp, setup_context)
    return KernelFunction.from_boxed(RuleKernel(RegisteredRule(schema, jvp, setup_context)))

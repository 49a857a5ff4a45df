"""``register_jvp``: kernels for FuncTorchGradWrapper that compute tangents by a user's function.

Gives operators the forward mode that ``torch.autograd.Function.jvp`` gives functions.
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
    """The ``ctx`` of ``setup_context`` and ``jvp``; users may set any attribute."""

    _materializes = True
    _for_forward: tuple[Any, ...] | None = None
    _for_backward: tuple[Any, ...] = ()

    def save_for_forward(self, *tensors: Any) -> None:
        """Save tensors for ``jvp``."""
        self._for_forward = tensors

    def save_for_backward(self, *tensors: Any) -> None:
        """Save tensors, unless ``save_for_forward`` is called: ``setup_context`` may call both."""
        self._for_backward = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Set whether ``jvp`` gets zeros (the default) or None for a tensor without a tangent."""
        self._materializes = value

    @property
    def saved_tensors(self) -> tuple[Any, ...]:
        """The tensors that ``save_for_forward`` saved, else those of ``save_for_backward``."""
        return self._for_backward if self._for_forward is None else self._for_forward


class RegisteredRule(ForwardRule):
    """A forward rule that calls ``jvp(ctx, *tangents)``."""

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
        """Return the tangents that ``jvp`` returns, one for each result.

        Raises AutogradError for a wrong number of them, and for a value that is neither None nor a
        Tensor with the shape and dtype of its result.
        """
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
    """Return a kernel for FuncTorchGradWrapper that computes tangents by ``jvp``.

    Raises RegistrationError if the operator writes to arguments, returns views or nothing, or takes
    keyword-only tensors, and if ``jvp`` or ``setup_context`` cannot be called.
    """
    check_schema(schema, "jvp")
    check_functions(schema, "jvp", jvp, setup_context)
    return KernelFunction.from_boxed(RuleKernel(RegisteredRule(schema, jvp, setup_context)))

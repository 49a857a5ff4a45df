"""The keys Autograd: nodes that calls record for the backward pass.

Note [Below Autograd]
    Kernels below the key see neither it nor ADInplaceOrView, also in the calls that they make: what
    they do is one step of the graph. Those of operators that write, and of views, do visit
    ADInplaceOrView, which counts versions and notes bases.

An operator without a kernel for the key has no derivative: the fallback lets the call go on below,
as ``VariableFallbackKernel.cpp`` of PyTorch does for the same keys (HIP, IPU, VE, PrivateUse2,
PrivateUse3 and nested tensors have no such fallback), and if an argument requires gradients, the
backward pass ends in an error that names the operator (``autograd_not_implemented_fallback.cpp``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Token
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from opdispatch.autograd.autograd_meta import AutogradMeta
from opdispatch.autograd.inplace_writes import (
    check_inplace,
    is_of_leaf,
    rebase_history,
)
from opdispatch.autograd.node import Edge, Facts, Node
from opdispatch.autograd.variable import (
    DIFFERENTIABLE_KINDS,
    counter_of,
    edge_of,
    facts_of,
    version_of,
)
from opdispatch.boxing.boxing import UnboxedFunction
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import AutogradError
from opdispatch.functionalities.layer_kernel_source import LayerText
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import AFTER_AUTOGRAD_KEYSET, AUTOGRAD_KEYSET, DispatchKeySet
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.local_state.local_dispatch_key_set import DEFAULT_STATE, LOCAL_STATE, LocalState
from opdispatch.schema.types import TENSOR
from opdispatch.tensors.tensor import Tensor, handles_operators

if TYPE_CHECKING:
    from opdispatch.boxing.kernel_operator import KernelOperator
    from opdispatch.dispatch.operator_handle import OperatorHandle
    from opdispatch.schema.function_schema import FunctionSchema, OperatorName

_B = BackendComponent
BACKENDS = (
    *(_B.CPU, _B.CUDA, _B.XLA, _B.MPS, _B.XPU, _B.HPU),
    *(_B.Lazy, _B.MTIA, _B.MAIA, _B.PrivateUse1, _B.Meta),
)


class KeysBelow(dict[int, DispatchKeySet]):
    """Key sets below a key, by the bits of the key set with which a call arrives at the key."""

    def __init__(self, after: DispatchKeySet) -> None:
        super().__init__()
        self._after = after

    def __missing__(self, bits: int) -> DispatchKeySet:
        found = self[bits] = DispatchKeySet(bits) & self._after
        return found


BELOW = KeysBelow(AFTER_AUTOGRAD_KEYSET)


Enter = Callable[[], "Token[LocalState]"]
"""Begins a block in which keys are excluded; returns the token for ``LOCAL_STATE.reset``."""


def _switch_off(keys: DispatchKeySet) -> Enter:
    usual: LocalState | None = None  # made when it is needed: Note [Nothing is switched on]
    get, set_state, bits = LOCAL_STATE.get, LOCAL_STATE.set, keys.bits

    def enter() -> Token[LocalState]:
        nonlocal usual
        state = get()
        if state is not DEFAULT_STATE:
            return set_state(replace(state, excluded=state.excluded | bits))
        if usual is None:
            usual = replace(state, excluded=state.excluded | bits)
        return set_state(usual)

    return enter


go_below_autograd = _switch_off(AUTOGRAD_KEYSET)
"""For operators that write or return views. PyTorch's ``AutoDispatchBelowAutograd``."""
go_below_adinplace_or_view = _switch_off(AUTOGRAD_KEYSET.add(DispatchKey.ADInplaceOrView))
"""For all other operators. PyTorch's ``AutoDispatchBelowADInplaceOrView``."""


class NotImplementedNode(Node):
    """The node of an operator without a derivative: raises AutogradError in the backward pass."""

    def __init__(self, operator: OperatorName, tensors: Sequence[Any], num_results: int) -> None:
        super().__init__(*edges_of(tensors), num_results)
        self._operator = operator

    @property
    def name(self) -> str:
        """Its PyTorch name."""
        return "NotImplemented"

    def apply(self, grads: list[Any]) -> NoReturn:
        """Raise AutogradError."""
        raise AutogradError(
            f"{self._operator} has no derivative, and the backward pass reaches it",
            hint="register one with opdispatch.register_autograd, or a kernel for Autograd",
            operator=str(self._operator),
        )


def edges_of(tensors: Sequence[Any]) -> tuple[list[Edge | None], list[Facts | None]]:
    """Return, per tensor, its gradient's edge and expected metadata, or None without an edge."""
    edges: list[Edge | None] = []
    facts: list[Facts | None] = []
    for each in tensors:
        edge = edge_of(each) if isinstance(each, Tensor) else None
        edges.append(edge)
        facts.append(None if edge is None else facts_of(each))
    return edges, facts


def set_history(result: Any, node: Node, number: int, given: Sequence[Any]) -> Any:
    """Return ``result`` as an output of ``node``; an array becomes a tensor if it has gradients.

    Leave values of classes that handle operators themselves unchanged. If ``result`` is one of the
    ``given`` arguments, the output is a detached tensor.
    """
    if not isinstance(result, Tensor):
        if handles_operators(type(result)):
            return result
        result = Tensor(result)
    else:
        for each in given:
            if each is result:
                result = result.detach()
                break
    if result.array.dtype.kind in DIFFERENTIABLE_KINDS:
        meta = result.autograd_meta
        if meta is None:
            meta = result.autograd_meta = AutogradMeta()
        meta.edge = (node, number)
        result.requires_grad_flag = True
    return result


def requires_gradients(stack: Sequence[Any]) -> bool:
    """Return whether grad mode is on and an argument on the stack requires gradients."""
    for value in stack:
        if isinstance(value, Tensor):
            found = value.requires_grad_flag
        else:
            found = type(value) is list and requires_gradients(value)
        if found:
            return AUTOGRAD_STATE.get().grad_mode
    return False


def redispatch_below_autograd(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Call the operator's kernel below the Autograd keys. See above."""
    _redispatch(op, keys, stack, is_custom=False)


def make_writing_kernel(*, has_derivative: bool) -> KernelFunction:
    """Return a kernel for Autograd of an operator of ``custom_op`` that writes.

    A leaf may be written to, and stays one, without a history: as in PyTorch, which leaves it to
    the kernel. What is returned of it is another tensor, made by the call. Each call is a version
    more, beside those of operators that the kernel writes with. An operator that has the tag "out"
    has no derivative, and refuses arguments that require gradients.
    """

    def record(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
        if not has_derivative and requires_gradients(stack):
            raise AutogradError(
                f"{op.name} writes its results to keyword-only arguments, and has no derivative, "
                "but one of its arguments requires gradients",
                hint="call it under no_grad, or with detached tensors",
                operator=str(op.name),
            )
        _redispatch(op, keys, stack, is_custom=True)

    return KernelFunction.from_boxed(
        record, make_without_gradients=partial(_pass_on, is_custom=True)
    )


def _pass_on(
    op: KernelOperator, keys: DispatchKeySet, *, is_custom: bool = False
) -> UnboxedFunction:
    """Return the kernel for calls in which no argument requires gradients."""
    signature = op.call_signature
    if not signature.written:
        kernel: UnboxedFunction = op.redispatch_function(BELOW[keys.bits]).kernel  # type: ignore[attr-defined]
        return kernel
    text = _CountingText(signature.schema, signature.written, always=is_custom)
    title = f"writes of {signature.schema.name}"
    counting = text.compile(
        title,
        AFTER_AUTOGRAD_KEYSET.__and__,
        _counter_of=counter_of,
        _tensors_in=_tensors_in,
        _version_of=version_of,
        _count_writes=_count_writes,
    ).unboxed(op, keys)
    if not is_custom:
        below = op.redispatch_function(BELOW[keys.bits]).kernel  # type: ignore[attr-defined]
        counting.counted = below  # type: ignore[attr-defined]
    return counting


class _CountingText(LayerText):
    """The source of a kernel that increments the versions of the arguments that it writes to::

    def _kernel(_a0, _a1):
        _counter0 = None
        if _isinstance(_a0, _Tensor):
            if (_meta := _a0.autograd_meta) is None or (_counter0 := _meta.counter) is None:
                _counter0 = _counter_of(_a0)
            _before0 = _counter0.value
        _result = _kernel_below(_a0, _a1)
        if _counter0 is not None and _counter0.value == _before0: _counter0.value += 1
        return _result
    """

    def __init__(self, schema: FunctionSchema, written: Sequence[int], *, always: bool) -> None:
        super().__init__(schema)
        self.written = written
        self.always = always

    def lines(self) -> list[str]:
        """Return the lines that call the kernel below and increment the versions."""
        before, after = [], []
        for n in self.written:
            name = self.names[n]
            if self.arguments[n].type is not TENSOR:  # lists of tensors, and None
                before += [
                    f"_tensors{n} = _tensors_in({name})",
                    f"_before{n} = [_version_of(_each) for _each in _tensors{n}]",
                ]
                after.append(f"_count_writes(_tensors{n}, _before{n}, always={self.always})")
                continue
            before += [
                f"_counter{n} = None",
                f"if _isinstance({name}, _Tensor):",
                f"    if (_meta := {name}.autograd_meta) is None"
                f" or (_counter{n} := _meta.counter) is None:",
                f"        _counter{n} = _counter_of({name})",
                f"    _before{n} = _counter{n}.value",
            ]
            unless = "" if self.always else f" and _counter{n}.value == _before{n}"
            after.append(f"if _counter{n} is not None{unless}: _counter{n}.value += 1")
        called = f"_result = _kernel_below({', '.join(self.passed)})"
        return [*before, called, *after, "return _result"]


def _tensors_in(value: Any) -> list[Any]:
    """Return the tensors in a value: the value itself, or those of a list."""
    return [each for each in flat_list([value]) if isinstance(each, Tensor)]


def _redispatch(
    op: OperatorHandle, keys: DispatchKeySet, stack: list[Any], *, is_custom: bool
) -> None:
    is_recorded = requires_gradients(stack)
    if not is_recorded and not op.may_write:
        op.redispatch_boxed(BELOW[keys.bits], stack)
        return
    signature = op.call_signature
    written = _tensors_in([stack[place] for place in signature.written])
    versions = [version_of(tensor) for tensor in written]
    if not is_recorded:
        op.redispatch_boxed(BELOW[keys.bits], stack)
        _count_writes(written, versions, always=is_custom)
        return
    schema = signature.schema
    given = flat_list(stack)
    recorded = [each for each in written if not (is_custom and is_of_leaf(each))]
    for tensor in recorded:
        check_inplace(tensor)
    node = NotImplementedNode(op.name, given, len(schema.returns) or 1)
    token = go_below_autograd()
    try:
        op.redispatch_boxed(BELOW[keys.bits], stack)
    finally:
        LOCAL_STATE.reset(token)
    _count_writes(written, versions, always=is_custom)
    for tensor in recorded:
        if tensor.array.dtype.kind in DIFFERENTIABLE_KINDS:
            rebase_history(tensor, node)
    for place, returned in enumerate(schema.returns):
        if is_custom:
            is_written = any(stack[place] is each for each in recorded)
        else:
            is_written = returned.alias_info is not None and returned.alias_info.is_write
        if not is_written and returned.type.dispatches:
            stack[place] = _with_history(stack[place], node, place, given)


def _with_history(result: Any, node: Node, number: int, given: Sequence[Any]) -> Any:
    if isinstance(result, list):
        return [_with_history(each, node, number, given) for each in result]
    return None if result is None else set_history(result, node, number, given)


def _count_writes(written: Sequence[Any], versions: Sequence[int], *, always: bool) -> None:
    """Bump the version of each written tensor unless an operator has already done so.

    With ``always``, bump it in either case.
    """
    for tensor, version in zip(written, versions, strict=True):
        if always or version_of(tensor) == version:
            counter_of(tensor).value += 1


def flat_list(values: Sequence[Any]) -> list[Any]:
    """Flatten the lists among the values, in place order."""
    flat: list[Any] = []
    for value in values:
        if isinstance(value, list):
            flat += value
        else:
            flat.append(value)
    return flat


_KERNEL = KernelFunction.from_boxed(redispatch_below_autograd, make_without_gradients=_pass_on)

FALLBACKS = {
    DispatchKey.AutogradOther: _KERNEL,
    **{to_runtime_key(DispatchKey.AutogradFunctionality, b): _KERNEL for b in BACKENDS},
}

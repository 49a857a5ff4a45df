"""Kernels for the key Autograd, written for each operator that has a derivative."""

from __future__ import annotations

import functools
import keyword
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.arrays import find_key_bits
from opdispatch.autograd.node import Edge, Facts
from opdispatch.autograd.saved_tensor import SavedTensor
from opdispatch.autograd.variable import edge_of, grad_fn_of
from opdispatch.autograd.view_nodes import check_may_be_written_to, rebase_history
from opdispatch.dispatch_key_set import DispatchKeySet
from opdispatch.function_schema import FunctionSchema
from opdispatch.functionalities.autograd import (
    BELOW,
    BELOW_ADINPLACE_OR_VIEW,
    BELOW_AUTOGRAD,
    edges_of,
    requires_gradients,
    set_history,
)
from opdispatch.functionalities.derivative import Derivative, FormulaNode, Formulas
from opdispatch.grad_mode import AUTOGRAD_STATE
from opdispatch.local_dispatch_key_set import LOCAL_STATE
from opdispatch.operator_handle import OperatorHandle
from opdispatch.schema_type import TENSOR
from opdispatch.tensor import Tensor

FindOperator = Callable[[], OperatorHandle]
"""Asked when a kernel is called: a handle that is had before its operator is published is slow."""


def make_derivative_kernel(
    schema: FunctionSchema, formulas: Formulas, operator: FindOperator
) -> Callable[..., Any]:
    """A kernel for the key Autograd of ``operator()``, to be registered ``with_keyset``.

    Raises AutogradError for formulas that do not fit the schema.
    """
    derivative = Derivative(schema, formulas)
    scope: dict[str, Any] = {
        "_Tensor": Tensor,
        "_type": type,
        "_tuple": tuple,
        "_state": AUTOGRAD_STATE.get,
        "_below": BELOW,
        "_enter": (BELOW_AUTOGRAD if derivative.gives_views else BELOW_ADINPLACE_OR_VIEW).enter,
        "_leave": LOCAL_STATE.reset,
        "_operator": operator,
        "_derivative": derivative,
        "_edge_of": edge_of,
        "_save": _saved,
        "_FormulaNode": FormulaNode,
        "_is_recorded": requires_gradients,
        "_is_part_of_graph": _is_part_of_graph,
        "_set_history": set_history,
        "_finish": functools.partial(_finish, derivative),
        "_record": functools.partial(_record, derivative, operator),
    }
    text = _Source(schema, derivative).kernel()
    exec(compile(text, f"<derivative of {derivative.name}>", "exec"), scope)
    kernel: Callable[..., Any] = scope["_kernel"]
    kernel.__name__ = kernel.__qualname__ = derivative.title
    return kernel


class _Source:
    """The text of a kernel; what a call costs that is not recorded is little, and so is the rest::

        def _kernel(_keys, _a0, _a1, *, axis):
            _r0 = _type(_a0) is _Tensor and _a0.requires_grad_flag
            _r1 = _type(_a1) is _Tensor and _a1.requires_grad_flag
            if (_r0 or _r1) and _state().grad_mode:
                _node = _FormulaNode(
                    _derivative,
                    (_edge_of(_a0) if _r0 else None, _edge_of(_a1) if _r1 else None),
                    ((_a0.array.shape, _a0.array.dtype) if _r0 else None, ...),
                    [_save(_a1) if _r0 else None, _save(_a0) if _r1 else None, axis],
                )
                _token = _enter()
                try: _result = _operator().redispatch(_below[_keys.bits], _a0, _a1, axis=axis)
                finally: _leave(_token)
                return _set_history(_result, _node, 0, (_a0, _a1, axis))
            return _operator().redispatch(_below[_keys.bits], _a0, _a1, axis=axis)

    All names of ours start with ``_``: an argument may have any other. Keyword-only arguments with
    names that cannot be those of parameters come in ``_named``.
    """

    def __init__(self, schema: FunctionSchema, derivative: Derivative) -> None:
        self.derivative = derivative
        self.is_one_tensor = [returned.type for returned in schema.returns] == [TENSOR]
        arguments = schema.arguments
        usable = [_can_be_parameter(a.name) for a in arguments if a.kwarg_only]
        self.by_name = all(usable)
        self.names = [
            a.name if a.kwarg_only and self.by_name else f"_a{n}" for n, a in enumerate(arguments)
        ]
        pairs = list(zip(self.names, arguments, strict=True))
        positional = [name for name, a in pairs if not a.kwarg_only]
        keyword_only = [(name, a.name) for name, a in pairs if a.kwarg_only]
        if self.by_name:
            star = ["*"] if keyword_only else []
            self.parameters = [*positional, *star, *(name for name, _ in keyword_only)]
            self.passed = [*positional, *(f"{name}={name}" for name, _ in keyword_only)]
            self.first = []
        else:
            self.parameters = self.passed = [*positional, "**_named"]
            self.first = [f"{name} = _named[{given!r}]" for name, given in keyword_only]
        self.differentiated = [self.names[place] for place in derivative.places]

    def kernel(self) -> str:
        """All of it."""
        lines = [*self.first, *self._flags()]
        flags = [f"_r{n}" for n in range(len(self.differentiated))]
        if flags:  # otherwise nothing is ever recorded
            lines.append(f"if ({' or '.join(flags)}) and _state().grad_mode:")
            lines += [f"    {line}" for line in self._recorded()]
        lines.append(f"return {self._redispatch()}")
        head = f"def _kernel({', '.join(['_keys', *self.parameters])}):"
        return "\n    ".join([head, *lines]) + "\n"

    def _redispatch(self) -> str:
        return f"_operator().redispatch({', '.join(['_below[_keys.bits]', *self.passed])})"

    def _flags(self) -> list[str]:
        """Of which arguments gradients are recorded."""
        lines = []
        for n, name in enumerate(self.differentiated):
            test = f"_type({name}) is _Tensor and {name}.requires_grad_flag"
            if self.derivative.lists[n]:
                test = f"_is_recorded({name})"
            elif self.derivative.writes and n == 0:
                test = f"_is_part_of_graph({name})"
            lines.append(f"_r{n} = {test}")
        return lines

    def _recorded(self) -> list[str]:
        stack = ", ".join(self.names)
        if self.derivative.writes or True in self.derivative.lists:
            return [f"return _record(_keys, [{stack}])"]
        pairs = [(name, f"_r{n}") for n, name in enumerate(self.differentiated)]
        edges = "".join(f"_edge_of({a}) if {r} else None, " for a, r in pairs)
        facts = "".join(f"({a}.array.shape, {a}.array.dtype) if {r} else None, " for a, r in pairs)
        kept = ", ".join(map(self._spelled, self.derivative.kept))
        return [
            f"_node = _FormulaNode(_derivative, ({edges}), ({facts}), [{kept}])",
            "_token = _enter()",
            "try:",
            f"    _result = {self._redispatch()}",
            "finally:",
            "    _leave(_token)",
            *self._finished(f"({stack},)"),
        ]

    def _finished(self, stack: str) -> list[str]:
        """``_finish``, in the place where it is needed if the result is one tensor."""
        if not self.is_one_tensor:
            return [f"return _finish(_node, _result, {stack})"]
        lines = [f"_result = _set_history(_result, _node, 0, {stack})"]
        if self.derivative.keeps_results:
            lines.append("if _type(_result) is _Tensor: _node.keep_results((_result,))")
        return [*lines, "return _result"]

    def _spelled(self, kept: str) -> str:
        """What is kept under that name, where a formula that is wanted needs it."""
        derivative = self.derivative
        if kept in ("result", "results"):
            return "None"
        wanted = " or ".join(f"_r{n}" for n in derivative.formulas_with(kept))
        argument, _, fact = kept.rpartition("_")
        if kept in derivative.arguments:
            name, text = self.names[derivative.arguments.index(kept)], "_save({})"
            if kept in derivative.plain:
                return name
            if kept in derivative.plain_lists:
                text = "({0} if {0} is None else {0}[:])"
        else:
            name = self.names[derivative.arguments.index(argument)]
            text = "_tuple({}.shape)" if fact == "shape" else "{}.dtype"
        return f"{text.format(name)} if {wanted} else None"


def _can_be_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _record(
    derivative: Derivative, operator: FindOperator, keys: DispatchKeySet, stack: list[Any]
) -> Any:
    """``kernel`` for what is less usual: lists of tensors, and operators that write."""
    if derivative.writes:
        grad_fn_of(stack[0])  # of a view whose base was written to: before it is looked at
        check_may_be_written_to(stack[0])
    edges: list[Edge | None] = []
    facts: list[Facts | None] = []
    widths = []
    for place, is_list in zip(derivative.places, derivative.lists, strict=True):
        tensors = stack[place] if is_list else [stack[place]]
        widths.append(len(tensors))
        new_edges, new_facts = edges_of(tensors)
        edges += new_edges
        facts += new_facts
    kept = [_kept_of(name, derivative, stack) for name in derivative.kept]
    node = FormulaNode(derivative, tuple(edges), tuple(facts), kept, widths)
    names = derivative.keyword_only
    count = len(stack) - len(names)
    named = dict(zip(names, stack[count:], strict=True))
    plain = not (derivative.writes or derivative.gives_views)
    token = (BELOW_ADINPLACE_OR_VIEW if plain else BELOW_AUTOGRAD).enter()
    try:
        result = operator().redispatch(BELOW[keys.bits], *stack[:count], **named)
    finally:
        LOCAL_STATE.reset(token)
    if derivative.writes:
        rebase_history(stack[0], node)
        return result
    return _finish(derivative, node, result, stack)


def _kept_of(name: str, derivative: Derivative, stack: Sequence[Any]) -> Any:
    if name in ("result", "results"):
        return None
    if name in derivative.arguments:
        return _saved(stack[derivative.arguments.index(name)])
    argument, _, fact = name.rpartition("_")
    value = stack[derivative.arguments.index(argument)]
    if isinstance(value, list):
        return [tuple(each.shape) if fact == "shape" else each.dtype for each in value]
    return tuple(value.shape) if fact == "shape" else value.dtype


def _finish(derivative: Derivative, node: FormulaNode, result: Any, given: Sequence[Any]) -> Any:
    """The results, with the node as what has made them."""
    if derivative.num_results == 1 and not isinstance(result, list):
        result = set_history(result, node, 0, given)
        if derivative.keeps_results and type(result) is Tensor:
            node.keep_results((result,))
        return result
    node.num_results = len(result)  # of a list, only known now
    results = [set_history(each, node, n, given) for n, each in enumerate(result)]
    if derivative.keeps_results and all(type(each) is Tensor for each in results):
        node.keep_results(results)
    return results if isinstance(result, list) else tuple(results)


def _is_part_of_graph(written: Any) -> bool:
    """Whether it requires gradients, or what it is a view of does."""
    if type(written) is not Tensor:
        return False
    meta = written.autograd_meta
    view = None if meta is None else meta.view
    return written.requires_grad_flag or (view is not None and view.base.requires_grad)


def _saved(value: Any) -> Any:
    if type(value) is Tensor:
        return SavedTensor(value)
    if type(value) is list:
        return [_saved(each) for each in value]
    if find_key_bits(value) is not None and not hasattr(type(value), "__torch_dispatch__"):
        return Tensor(value)  # so that whatever a formula does with it is dispatched
    return value

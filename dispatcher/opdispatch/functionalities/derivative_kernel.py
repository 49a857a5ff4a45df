"""Kernels for the key Autograd, generated for each operator with a derivative."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from opdispatch.autograd.inplace_writes import check_inplace, rebase_history
from opdispatch.autograd.recording_state import WATCHED, note_recorded
from opdispatch.autograd.saved_tensor import save_result, save_tensor
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.functionalities.autograd import (
    go_below_adinplace_or_view,
    go_below_autograd,
    set_history,
)
from opdispatch.functionalities.autograd_kernel_source import (
    TELL,
    AutogradKernelText,
    history_of,
)
from opdispatch.functionalities.derivative import (
    Derivative,
    FormulaNode,
    Formulas,
    has_tensors,
)
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import TENSOR, ListType, SchemaType
from opdispatch.tensors.tensor import Tensor


def make_derivative_kernel(schema: FunctionSchema, formulas: Formulas) -> KernelFunction:
    """Return a kernel for the key Autograd that records calls with the formulas.

    Raises AutogradError for formulas that do not fit the schema.
    """
    derivative = Derivative(schema, formulas)
    is_usual = not (derivative.writes or derivative.gives_views)
    return _DerivativeText(schema, derivative).compile_derivative(
        derivative.title,
        _enter=go_below_adinplace_or_view if is_usual else go_below_autograd,
        _derivative=derivative,
        _saved=_saved,
        _save_result=save_result,
        _copied=_copied,
        _new=FormulaNode.__new__,
        _Node=FormulaNode,
        _check_write=check_inplace,
        _shapes_of=_shapes_of,
        _rebase_history=rebase_history,
        _finish=_finish,
    )


class _DerivativeText(AutogradKernelText):
    """The source of a kernel::

    def _kernel(_a0, _a1, *, axis):
        _r0 = _isinstance(_a0, _Tensor) and _a0.requires_grad_flag
        _r1 = _isinstance(_a1, _Tensor) and _a1.requires_grad_flag
        if (_r0 or _r1) and _state().grad_mode:
            _node = _new(_Node)
            _node.derivative = _derivative
            _node.edges = (_edge_of(_a0) if _r0 else None, _edge_of(_a1) if _r1 else None)
            _node.facts = (_a0's shape, dtype and device if _r0 else None, ...)
            _node.kept = [_a1 and its version if _r0 else None, ..., axis]
            _node.number = _next_number()
            _token = _enter()
            try: _result = _below(_a0, _a1, axis=axis)
            finally: _leave(_token)
            if _type(_result) is not _Tensor or _result is _a0 or _result is _a1:
                return _finish(_node, _result, (_a0, _a1))
            if _result.array.dtype.kind in _KINDS:
                the node is what has made the result
            if _watched: _note_recorded(_node)
            return _result
        return _below(_a0, _a1, axis=axis)
    """

    def __init__(self, schema: FunctionSchema, derivative: Derivative) -> None:
        super().__init__(schema, derivative.places)
        self.derivative = derivative
        self.is_for_gradients = not derivative.writes

    def test_of(self, place: int) -> str:
        """Return an expression for whether an argument requires gradients."""
        if not self.derivative.writes or place != self.places[0]:
            return super().test_of(place)
        name = self.names[place]  # of a view, its base may require gradients
        is_view = f"_type(_m := {name}.autograd_meta) is _View"
        requires = f"{name}.requires_grad_flag or {is_view} and _m.base.requires_grad"
        return f"_isinstance({name}, _Tensor) and ({requires})"

    def not_recorded(self) -> list[str]:
        """Return the lines that only call below the key."""
        return [self.tail_call()]

    def recorded(self) -> list[str]:
        """Return the lines that create the node, call below the key, and set the history."""
        derivative = self.derivative
        written = self.names[0] if derivative.writes else ""
        return [
            *([f"_check_write({written})"] if written else []),
            "_node = _new(_Node)",
            "_node.derivative = _derivative",
            *self._inputs(),
            f"_node.kept = [{', '.join(map(self._kept, derivative.kept))}]",
            "_node.number = _next_number()",  # the edges' nodes have lower ones
            "_token = _enter()",
            "try:",
            f"    _result = {self.below()}",
            "finally:",
            "    _leave(_token)",
            *([f"_rebase_history({written}, _node)"] if written else self._end()),
            TELL,
            "return _result",
        ]

    def _inputs(self) -> list[str]:
        """Return the source of the node's edges and facts, and of its widths if there are lists."""
        lines = self.edges()
        if True not in self.derivative.lists:
            return lines
        widths = [f"_len({self.names[p]})" if self.is_list(p) else "1" for p in self.places]
        return [*lines, f"_node.widths = ({', '.join(widths)},)"]

    def _kept(self, kept: str) -> str:
        """Return the expression of the value that formulas need under the name ``kept``."""
        if kept in ("result", "results"):
            return "None"  # until they are there
        place = self.derivative.arguments.get(kept)
        if place is not None:
            text = _kept_of(self.arguments[place].type)
        elif kept.endswith("_device"):
            place, text = self.derivative.arguments[kept.removesuffix("_device")], "{}.device"
        else:
            place = self.derivative.arguments[kept.removesuffix("_shape")]
            is_list = isinstance(self.arguments[place].type, ListType)
            text = "_shapes_of({})" if is_list else "_tuple({}.shape)"
        text = text.replace("{}", self.names[place])
        by = self.derivative.formulas_with(kept)
        if text == self.names[place] or len(by) == len(self.places):
            return text
        return f"{text} if {' or '.join(self.flags[n] for n in by)} else None"

    def _end(self) -> list[str]:
        """Return the lines that set the node as the result's ``grad_fn``."""
        finish = f"return _finish(_node, _result, {self.given()})"
        needs = self.derivative.kept
        if self.returns == [TENSOR] and "results" not in needs:
            lines = [f"if {self.is_other('_result')}: {finish}", *history_of("_result", "0")]
            if "result" in needs:
                lines.append(f"    _node.kept[{needs.index('result')}] = _save_result(_result)")
        elif self.returns == [ListType(TENSOR)] and not self.derivative.keeps_results:
            lines = [
                "for _n, _each in _enumerate(_result):",
                f"    if {self.is_other('_each')}: {finish}",
                *(f"    {line}" for line in history_of("_each", "_n")),
                "_node.num_results = _len(_result)",
            ]
        else:
            return [finish]
        return lines


def _kept_of(kind: SchemaType) -> str:
    """Return the source that saves an argument, with {} for its name.

    See ``FormulaNode._unpacked``.
    """
    lists = str(kind).count("[")
    if has_tensors(kind):
        # ``version_of``, inlined
        version = (
            "0 if (_m := {}.autograd_meta) is None or (_c := _m.counter) is None else _c.value"
        )
        of_one = f"(({{}}, {version}) if _isinstance({{}}, _Tensor) else {{}})"
        return "_saved({})" if lists else of_one
    if lists == 0:
        return "{}"
    if lists > 1:
        return "_copied({})"  # since their owner may change them
    return "{}[:]" if isinstance(kind, ListType) else "({} if {} is None else {}[:])"


def _saved(value: Any) -> Any:
    """Return the saved form of a tensor, of an array in its place, or of a list of these."""
    if type(value) is list:
        return [_saved(each) for each in value]
    return save_tensor(value) if isinstance(value, Tensor) else value


def _shapes_of(values: Sequence[Any]) -> list[Any]:
    # A tensor's array has the same attributes, and is faster to read them from.
    shapes = []
    for each in values:
        array = each.array if isinstance(each, Tensor) else each
        shapes.append(tuple(array.shape))
    return shapes


def _copied(value: Any) -> Any:
    return [_copied(each) for each in value] if type(value) is list else value


def _finish(node: FormulaNode, result: Any, given: Sequence[Any]) -> Any:
    """Return the results with the node as ``grad_fn``; ``given`` are the tensor arguments."""
    if node.derivative.num_results == 1 and not isinstance(result, list):
        result = set_history(result, node, 0, given)
        results = [result]
    else:
        node.num_results = len(result)  # of a list, only known now
        results = [set_history(each, node, n, given) for n, each in enumerate(result)]
        result = results if isinstance(result, list) else tuple(results)
    if node.derivative.keeps_results:
        node.keep_results(results)
    if WATCHED:
        note_recorded(node)
    return result

"""Kernels for the key Autograd, written for each operator that has a derivative."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Sequence
from typing import Any

from opdispatch.autograd.node import next_number
from opdispatch.autograd.saved_tensor import save_result, save_tensor
from opdispatch.autograd.variable import (
    DIFFERENTIABLE_KINDS,
    AutogradMeta,
    edge_of,
    version_of,
)
from opdispatch.autograd.view_nodes import check_may_be_written_to, rebase_history
from opdispatch.function_schema import FunctionSchema
from opdispatch.functionalities.autograd import (
    BELOW,
    edges_of,
    go_below_adinplace_or_view,
    go_below_autograd,
    set_history,
)
from opdispatch.functionalities.derivative import (
    Derivative,
    FormulaNode,
    Formulas,
    has_tensors,
)
from opdispatch.grad_mode import AUTOGRAD_STATE
from opdispatch.local_dispatch_key_set import LOCAL_STATE
from opdispatch.operator_handle import OperatorHandle
from opdispatch.schema_type import TENSOR, ListType, SchemaType
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
    is_usual = not (derivative.writes or derivative.gives_views)
    scope: dict[str, Any] = {
        "_Tensor": Tensor,
        "_type": type,
        "_isinstance": isinstance,
        "_len": len,
        "_tuple": tuple,
        "_state": AUTOGRAD_STATE.get,
        "_below": BELOW,
        "_enter": go_below_adinplace_or_view if is_usual else go_below_autograd,
        "_leave": LOCAL_STATE.reset,
        "_operator": operator,
        "_derivative": derivative,
        "_edge_of": edge_of,
        "_edges_of": edges_of,
        "_version_of": version_of,
        "_saved": _saved,
        "_save_result": save_result,
        "_copied": _copied,
        "_new": FormulaNode.__new__,
        "_Node": FormulaNode,
        "_Meta": AutogradMeta,
        "_KINDS": DIFFERENTIABLE_KINDS,
        "_next_number": next_number,
        "_is_recorded": _is_recorded,
        "_is_part_of_graph": _is_part_of_graph,
        "_check_write": check_may_be_written_to,
        "_shapes_of": _shapes_of,
        "_rebase_history": rebase_history,
        "_finish": _finish,
    }
    text = _Source(schema, derivative).kernel()
    exec(compile(text, f"<derivative of {derivative.name}>", "exec"), scope)
    kernel: Callable[..., Any] = scope["_kernel"]
    kernel.__name__ = kernel.__qualname__ = derivative.title
    return kernel


class _Source:
    """The text of a kernel; what a call costs that is not recorded is little, and so is the rest::

        def _kernel(_keys, _a0, _a1, *, axis):
            _r0 = _isinstance(_a0, _Tensor) and _a0.requires_grad_flag
            _r1 = _isinstance(_a1, _Tensor) and _a1.requires_grad_flag
            if (_r0 or _r1) and _state().grad_mode:
                _node = _new(_Node)
                _node.derivative = _derivative
                _node.edges = (_edge_of(_a0) if _r0 else None, _edge_of(_a1) if _r1 else None)
                _node.facts = ((_a0.array.shape, _a0.array.dtype) if _r0 else None, ...)
                _node.kept = [_a1 and its version if _r0 else None, ..., axis]
                _node.number = _next_number()
                _token = _enter()
                try: _result = _operator().redispatch(_below[_keys.bits], _a0, _a1, axis=axis)
                finally: _leave(_token)
                if _type(_result) is not _Tensor or _result is _a0 or _result is _a1:
                    return _finish(_node, _result, (_a0, _a1))
                if _result.array.dtype.kind in _KINDS:
                    the node is what has made the result
                return _result
            return _operator().redispatch(_below[_keys.bits], _a0, _a1, axis=axis)

    All names of ours start with ``_``: an argument may have any other. Keyword-only arguments with
    names that cannot be those of parameters come in ``_named``.
    """

    def __init__(self, schema: FunctionSchema, derivative: Derivative) -> None:
        self.derivative = derivative
        self.is_one_tensor = [returned.type for returned in schema.returns] == [TENSOR]
        self.arguments = arguments = schema.arguments
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
            test = f"_isinstance({name}, _Tensor) and {name}.requires_grad_flag"
            if self.derivative.lists[n]:
                test = f"_is_recorded({name})"
            elif self.derivative.writes and n == 0:
                test = f"_is_part_of_graph({name})"
            lines.append(f"_r{n} = {test}")
        return lines

    def _recorded(self) -> list[str]:
        """The call of which gradients are recorded."""
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
            f"    _result = {self._redispatch()}",
            "finally:",
            "    _leave(_token)",
            *([f"_rebase_history({written}, _node)", "return _result"] if written else self._end()),
        ]

    def _inputs(self) -> list[str]:
        """The node's edges and facts, and its widths where there are lists."""
        lines, edges, facts, widths = [], "", "", ""
        for n, (name, is_list) in enumerate(
            zip(self.differentiated, self.derivative.lists, strict=True)
        ):
            unless = f" if _r{n} else None" if len(self.differentiated) > 1 else ""
            if is_list:
                lines.append(f"_e{n}, _f{n} = _edges_of({name})")
            edges += f"*_e{n}, " if is_list else f"_edge_of({name}){unless}, "
            of_one = f"({name}.array.shape, {name}.array.dtype){unless}, "
            facts += f"*_f{n}, " if is_list else of_one
            widths += f"_len({name}), " if is_list else "1, "
        lines += [f"_node.edges = ({edges})", f"_node.facts = ({facts})"]
        return [*lines, f"_node.widths = ({widths})"] if True in self.derivative.lists else lines

    def _kept(self, kept: str) -> str:
        """What is kept under that name, where a formula that is wanted needs it."""
        if kept in ("result", "results"):
            return "None"  # until they are there
        place = self.derivative.arguments.get(kept)
        if place is not None:
            text = _kept_of(self.arguments[place].type)
        else:
            place = self.derivative.arguments[kept.removesuffix("_shape")]
            is_list = isinstance(self.arguments[place].type, ListType)
            text = "_shapes_of({})" if is_list else "_tuple({}.shape)"
        text = text.replace("{}", self.names[place])
        by = self.derivative.formulas_with(kept)
        if text == self.names[place] or len(by) == len(self.differentiated):
            return text
        return f"{text} if {' or '.join(f'_r{n}' for n in by)} else None"

    def _end(self) -> list[str]:
        """The result, with the node as what has made it."""
        tensors = [n for n, a in zip(self.names, self.arguments, strict=True) if a.type.dispatches]
        finish = f"return _finish(_node, _result, ({', '.join(tensors)},))"
        derivative = self.derivative
        if not self.is_one_tensor or "results" in derivative.kept:
            return [finish]
        is_given = "".join(f" or _result is {name}" for name in tensors)
        lines = [
            f"if _type(_result) is not _Tensor{is_given}: {finish}",
            "if _result.array.dtype.kind in _KINDS:",
            "    _meta = _result.autograd_meta",
            "    if _meta is None: _meta = _result.autograd_meta = _Meta()",
            "    _meta.edge = (_node, 0)",
            "    _result.requires_grad_flag = True",
        ]
        if "result" in derivative.kept:
            place = derivative.kept.index("result")
            lines.append(f"    _node.kept[{place}] = _save_result(_result)")
        return [*lines, "return _result"]


def _can_be_parameter(name: str) -> bool:
    return name.isidentifier() and not keyword.iskeyword(name) and not name.startswith("_")


def _kept_of(kind: SchemaType) -> str:
    """The text of how an argument is kept, with {} for its name. See ``FormulaNode._unpacked``."""
    lists = str(kind).count("[")
    if has_tensors(kind):
        version = "0 if {}.autograd_meta is None else _version_of({})"
        of_one = f"(({{}}, {version}) if _isinstance({{}}, _Tensor) else {{}})"
        return "_saved({})" if lists else of_one
    if lists == 0:
        return "{}"
    if lists > 1:
        return "_copied({})"  # since their owner may change them
    return "{}[:]" if isinstance(kind, ListType) else "({} if {} is None else {}[:])"


def _saved(value: Any) -> Any:
    """What is kept of a tensor, of what stands for one, and of a list of such."""
    if type(value) is list:
        return [_saved(each) for each in value]
    return save_tensor(value) if isinstance(value, Tensor) else value


def _shapes_of(values: Sequence[Any]) -> list[Any]:
    # Of a tensor, its array's, which is quicker to have.
    return [tuple((v.array if isinstance(v, Tensor) else v).shape) for v in values]


def _copied(value: Any) -> Any:
    return [_copied(each) for each in value] if type(value) is list else value


def _is_recorded(values: Sequence[Any]) -> bool:
    """Whether one of them requires gradients."""
    return True in [isinstance(each, Tensor) and each.requires_grad_flag for each in values]


def _is_part_of_graph(written: Any) -> bool:
    """Whether it requires gradients, or what it is a view of does."""
    if not isinstance(written, Tensor):
        return False
    meta = written.autograd_meta
    view = None if meta is None else meta.view
    return written.requires_grad_flag or (view is not None and view.base.requires_grad)


def _finish(node: FormulaNode, result: Any, given: Sequence[Any]) -> Any:
    """The results, with the node as what has made them."""
    derivative = node.derivative
    if derivative.num_results == 1 and not isinstance(result, list):
        result = set_history(result, node, 0, given)
        if derivative.keeps_results:
            node.keep_results((result,))
        return result
    node.num_results = len(result)  # of a list, only known now
    results = [set_history(each, node, n, given) for n, each in enumerate(result)]
    if derivative.keeps_results:
        node.keep_results(results)
    return results if isinstance(result, list) else tuple(results)

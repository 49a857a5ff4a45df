"""Source of kernels for the key Autograd: the parts that they share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

import numpy as np

from opdispatch.autograd.autograd_meta import AutogradMeta, DifferentiableViewMeta
from opdispatch.autograd.node import next_number
from opdispatch.autograd.recording_state import WATCHED, note_recorded
from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS, edge_of
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.functionalities.derivative import has_tensors
from opdispatch.functionalities.layer_kernel_source import LayerText
from opdispatch.keys.dispatch_key_set import AFTER_AUTOGRAD_KEYSET
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import ListType

_SCOPE: dict[str, Any] = {
    "_state": AUTOGRAD_STATE.get,
    "_leave": LOCAL_STATE.reset,
    "_id": id,
    "_map": map,
    "_edge_of": edge_of,
    "_Meta": AutogradMeta,
    "_View": DifferentiableViewMeta,
    "_KINDS": DIFFERENTIABLE_KINDS,
    "_next_number": next_number,
    "_watched": WATCHED,
    "_note_recorded": note_recorded,
}
TELL = "if _watched: _note_recorded(_node)"
"""The line after a node has saved its values; the list that it tests is almost always empty."""


def history_of(result: str, number: str) -> list[str]:
    """Return the lines of ``set_history`` for a result, a plain tensor that is not an argument.

    ``name`` and ``number`` are the result's name and index. The last line belongs to an ``if``
    block that runs if the result can have gradients.
    """
    return [
        f"if {result}.array.dtype.kind in _KINDS:",
        f"    _meta = {result}.autograd_meta",
        f"    if _meta is None: _meta = {result}.autograd_meta = _Meta()",
        f"    _meta.edge = (_node, {number})",
        f"    {result}.requires_grad_flag = True",
    ]


class AutogradKernelText(LayerText):
    """The source of a kernel for Autograd, which enters few Python functions.

    A call that is not recorded costs little, and one that is recorded costs what is saved for it.
    """

    def __init__(self, schema: FunctionSchema, places: Sequence[int]) -> None:
        """Prepare the text.

        ``places`` are those of the arguments that gradients are recorded of.
        """
        super().__init__(schema)
        self.places = list(places)
        self.flags = [f"_r{place}" for place in places]
        """The names of variables that say whether an argument requires gradients."""

    def compile_derivative(self, title: str, **scope: Any) -> KernelFunction:
        """Compile the kernel, which redispatches below the key."""
        scope = {**_SCOPE, "_ndarray": np.ndarray, **scope}
        return self.compile(title, AFTER_AUTOGRAD_KEYSET.__and__, **scope)

    def lines(self) -> list[str]:
        """Return all lines of the kernel."""
        lines: list[str] = []
        for place, flag in zip(self.places, self.flags, strict=True):
            if self.is_list(place):
                lines += [
                    f"{flag} = False",
                    f"for _each in {self._values(place)}:",
                    "    if _isinstance(_each, _Tensor) and _each.requires_grad_flag:",
                    f"        {flag} = True; break",
                ]
            else:
                lines.append(f"{flag} = {self.test_of(place)}")
        if self.flags:  # otherwise nothing is ever recorded
            lines.append(f"if ({' or '.join(self.flags)}) and _state().grad_mode:")
            lines += [f"    {line}" for line in self.recorded()]
        return [*lines, *self.not_recorded()]

    def is_list(self, place: int) -> bool:
        """Return whether the argument's type is a list of tensors, optional or not."""
        return "[" in str(self.arguments[place].type)

    def test_of(self, place: int) -> str:
        """Return an expression for whether an argument, not a list, requires gradients."""
        name = self.names[place]
        return f"_isinstance({name}, _Tensor) and {name}.requires_grad_flag"

    def _values(self, place: int) -> str:
        """Return the source of an argument as a sequence: the list, or a tuple of one tensor."""
        name, kind = self.names[place], self.arguments[place].type
        is_sure = isinstance(kind, ListType) or not self.is_list(place)
        return name if is_sure else f"({name} if _type({name}) is _list else ({name},))"

    @abstractmethod
    def recorded(self) -> Sequence[str]:
        """Return the lines of a call that is recorded."""

    @abstractmethod
    def not_recorded(self) -> Sequence[str]:
        """Return the lines of a call that is not recorded."""

    # -- for subclasses -------------------------------------------------------------------------

    def edges(self, places: Sequence[int] | None = None) -> list[str]:
        """Return the source of the node's edges and facts.

        Those of the arguments at ``places``, otherwise of those that gradients are recorded of.
        """
        lines, edges, facts = [], "", ""
        for place in self.places if places is None else places:
            name, flag = self.names[place], f"_r{place}"
            if flag not in self.flags:
                edge = fact = "None"
            elif self.is_list(place):
                one, its = _edge_and_facts("_each")
                lines += [
                    f"_e{place}, _f{place} = [], []",
                    f"for _each in {self._values(place)}:",
                    "    if _isinstance(_each, _Tensor) and _each.requires_grad_flag:",
                    f"        _e = {one}; _f = None if _e is None else {its}",
                    "    else: _e = _f = None",
                    f"    _e{place}.append(_e); _f{place}.append(_f)",
                ]
                edge, fact = f"*_e{place}", f"*_f{place}"
            else:
                unless = f" if {flag} else None" if len(self.places) > 1 else ""
                edge, fact = (f"{each}{unless}" for each in _edge_and_facts(name))
            edges, facts = f"{edges}{edge}, ", f"{facts}{fact}, "
        return [*lines, f"_node.edges = ({edges})", f"_node.facts = ({facts})"]

    def given(self) -> str:
        """Return the source of each tensor argument; an optional one may be None."""
        places = [n for n, a in enumerate(self.arguments) if has_tensors(a.type)]
        star = {place: "*" if self.is_list(place) else "" for place in places}
        return f"({''.join(f'{star[n]}{self._values(n)}, ' for n in places)})"

    def is_other(self, result: str) -> str:
        """Return an expression for whether a result is an argument or is not a plain tensor."""
        tests = [f"_type({result}) is not _Tensor"]
        for place, argument in enumerate(self.arguments):
            if has_tensors(argument.type) and self.is_list(place):
                tests.append(f"_id({result}) in _map(_id, {self._values(place)})")
            elif has_tensors(argument.type):
                tests.append(f"{result} is {self.names[place]}")
        return " or ".join(tests)


def _edge_and_facts(name: str) -> tuple[str, str]:
    """Return expressions for a tensor's edge and facts that rarely enter a Python function."""
    # Inlined fast path of ``edge_of`` for results of calls that are not views.
    edge = (
        f"(_e if _type(_m := {name}.autograd_meta) is _Meta and (_e := _m.edge) is not None"
        f" else _edge_of({name}))"
    )
    device = f'"cpu" if _type(_a) is _ndarray else {name}.device'
    return edge, f"((_a := {name}.array).shape, _a.dtype, {device})"

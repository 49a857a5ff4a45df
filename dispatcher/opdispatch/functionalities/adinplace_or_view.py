"""The key ADInplaceOrView: counts versions and links views to their bases.

PyTorch generates a kernel for each mutating or view operator
(``torch/csrc/autograd/ADInplaceOrViewType.cpp``); all others fall through.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from opdispatch.autograd.autograd_meta import (
    MADE_UNDER_NO_GRAD,
    ONE_OF_SEVERAL,
    AutogradMeta,
    BaseRequiresGrad,
    DifferentiableViewMeta,
    VersionCounter,
    make_view,
    view_of,
)
from opdispatch.autograd.inference_tensor import (
    ADINPLACE_OR_VIEW_BIT,
    is_inference,
    make_inference,
)
from opdispatch.autograd.variable import counter_of
from opdispatch.autograd.view_nodes import shares_elements
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.dispatch.operator_state import TENSOR_BITS
from opdispatch.functionalities.layer_kernel_source import FindOperator, LayerText
from opdispatch.keys.dispatch_key_set import AFTER_ADINPLACEORVIEW_KEYSET
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import TENSOR, ListType
from opdispatch.tensors.tensor import Tensor

REQUIRED_BY_BASE = BaseRequiresGrad([True])
"""The ``requires_grad`` flag of a view that was made under ``no_grad`` of such a base."""
_new = object.__new__
_keys_below = AFTER_ADINPLACEORVIEW_KEYSET.__and__


def make_write_kernel(schema: FunctionSchema) -> KernelFunction:
    """Return a kernel for an operator that writes to its first argument in place."""
    return _WriteText(schema).compile(
        f"write of {schema.name}", _keys_below, _counter_of=counter_of
    )


class _WriteText(LayerText):
    """Source of a kernel that increments the version.

    An inference tensor has no version counter, and is rejected before the write.
    """

    def lines(self) -> list[str]:
        """Return the lines that call the kernel below and increment the version."""
        return [
            f"if not _isinstance({self.names[0]}, _Tensor): {self.tail_call()}",
            f"if (_meta := {self.names[0]}.autograd_meta) is None"
            " or (_counter := _meta.counter) is None:",
            f"    _counter = _counter_of({self.names[0]})",
            "_before = _counter.value",
            f"_result = _kernel_below({', '.join(self.passed)})",
            "_now = _counter.value",
            "_counter.value = _before + 1 if _now <= _before else _now",
            "return _result",
        ]


def make_view_kernel(schema: FunctionSchema, operator: FindOperator) -> KernelFunction:
    """Return a kernel for ``operator()``, whose results may be views of its first argument."""
    title = f"view of {schema.name}"
    return _ViewText(schema).compile(
        title,
        _keys_below,
        _operator=operator,
        _Counter=VersionCounter,
        _UNDER_NO_GRAD=MADE_UNDER_NO_GRAD,
        _ONE_OF_SEVERAL=ONE_OF_SEVERAL,
        _state=AUTOGRAD_STATE.get,
        _Meta=AutogradMeta,
        _View=DifferentiableViewMeta,
        _Flag=BaseRequiresGrad,
        _BY_BASE=REQUIRED_BY_BASE,
        _note_results=_note_results,
        _ndarray=np.ndarray,
        _getattr=getattr,
        _new=_new,
        _BITS=TENSOR_BITS,
        _BIT=ADINPLACE_OR_VIEW_BIT,
    )


_TENSOR_OF_PART = (
    "_result = _new(_Tensor)",
    "_result.array = _part",
    "_result.key_bits = _BITS",
    "_result.autograd_meta = None",
    "_result.requires_grad_flag = False",
)
_SHARES_ELEMENTS = (  # as ``shares_elements``
    "_type(_part) is _ndarray and (_part is _whole or (_owner := _part.base) is not None"
    " and (_owner is _whole or _owner is _whole.base))"
)


class _ViewText(LayerText):
    """Source of a kernel that links its results to the base that they are views of.

    If the kernel below has a function ``of_array``, the source makes the tensors itself.
    """

    def made_once(self) -> list[str]:
        """Return the lines that find ``of_array``, and make what makes the view of another base."""
        others = [*self.positional[1:], *(name for _, name in self.keyword_only)]
        passed = ", ".join(["_base", *self.positional[1:], self._by_name({})])
        return [
            '_of_array = _getattr(_kernel_below, "of_array", None)',
            f"def _replay({', '.join(['_base', *others])}): return _operator()({passed})",
            f"def _replay_one({', '.join(['_base', '_place', *others])}):"
            f" return _operator()({passed})[_place]",
        ]

    def lines(self) -> list[str]:
        """Return the lines that call the kernel below; of a plain array nothing is recorded."""
        first, *others = self.positional
        # The kernel may modify its lists, so it gets copies; the originals are kept for the replay.
        kinds = {name: a.type for name, a in zip(self.names, self.arguments, strict=True)}
        fresh = {
            name: f"[*{name}]" if isinstance(kind, ListType) else name
            for name, kind in kinds.items()
        }
        rest = ", ".join([*(fresh[name] for name in others), self._by_name(fresh)])
        same = ", ".join([*others, self._by_name({})])  # it leaves lists as they are
        below = f"_kernel_below({first}, {rest})"
        items = ", ".join(f"{given!r}: {name}" for given, name in self.keyword_only)
        many = self.returns == [ListType(TENSOR)]
        plain = self._several(same, below) if many else self._one(same, below)
        return [
            f"if _type({first}) is _Tensor and _type(_whole := {first}.array) is _ndarray"
            f" and {first}.key_bits & _BIT:",
            *(f"    {line}" for line in plain),
            f"elif not _isinstance({first}, _Tensor): {self.tail_call()}",
            f"else: _result = {below}",
            f"_note_results(_operator, {first}, _result,"
            f" ({''.join(f'{name}, ' for name in others)}), {{{items}}})",
            "return _result",
        ]

    def _one(self, same: str, below: str) -> list[str]:
        """Return the lines for one result, which return it if it is a plain view."""
        return [
            "if _of_array is None:",
            f"    _result = {below}",
            "    _part = _result.array if _type(_result) is _Tensor else None",
            f"elif _type(_part := _of_array(_whole, {same})) is _ndarray:",
            *(f"    {line}" for line in _TENSOR_OF_PART),
            "else: _result = _Tensor(_part)",
            f"if {_SHARES_ELEMENTS} and _result.autograd_meta is None:",
            *(f"    {line}" for line in (*self._note_call(), *self._note_result("_replay"))),
            "    return _result",
        ]

    def _several(self, same: str, below: str) -> list[str]:
        """Return the lines for a list of results, which return it if arrays are its items."""
        lines = [
            f"if {_SHARES_ELEMENTS}:",
            *(f"    {line}" for line in self._note_result("_replay_one", "_place")),
        ]
        return [
            "if _of_array is not None:",
            *(f"    {line}" for line in self._note_call()),
            "    if _is_recorded: _made_by = _ONE_OF_SEVERAL",
            "    _results = []",
            f"    for _place, _part in _enumerate(_of_array(_whole, {same})):",
            "        if _type(_part) is _ndarray:",
            *(f"            {line}" for line in _TENSOR_OF_PART),
            "        else: _result = _Tensor(_part)",
            *(f"        {line}" for line in lines),
            "        _results.append(_result)",
            "    return _results",
            f"_result = {below}",
        ]

    def _note_call(self) -> list[str]:
        """Return the lines that find what all results of a call share, as ``_note``."""
        first = self.positional[0]
        return [
            f"_base, _given = {first}, {first}.autograd_meta",
            f"if _given is None: _given = {first}.autograd_meta = _Meta()",
            "if (_counter := _given.counter) is None: _counter = _given.counter = _Counter()",
            '_outer, _made_by = None, ""',
            "if _type(_given) is _View:",
            "    _outer, _made_by, _base = _given.replay, _given.made_by, _given.base",
            "    _given = _base.autograd_meta",
            "if not (_is_recorded := _state().grad_mode): _made_by = _UNDER_NO_GRAD",
            "if _base.requires_grad_flag: _flag = False if _is_recorded else _BY_BASE",
            "elif (_flag := _given.flag_of_views) is None: _flag = _given.flag_of_views = _Flag()",
        ]

    def _note_result(self, *replay: str) -> list[str]:
        """Return the lines that make one result a view, made anew by ``replay``."""
        named = [name for _, name in self.keyword_only]
        steps = ", ".join([*replay, *self.positional[1:], *named])
        return [
            "_meta = _result.autograd_meta = _View()",
            f"_meta.base, _meta.counter, _meta.replay = _base, _counter, (_outer, {steps})",
            "_meta.version = _counter.value",
            "if _made_by: _meta.made_by = _made_by",
            "_result.requires_grad_flag = _flag",
        ]

    def _by_name(self, values: Mapping[str, str]) -> str:
        """Return the source of the keyword-only arguments of a call."""
        pairs = [(given, values.get(name, name)) for given, name in self.keyword_only]
        if self.first:  # which cannot all be names of parameters
            return "**{" + ", ".join(f"{given!r}: {value}" for given, value in pairs) + "}"
        return ", ".join(f"{given}={value}" for given, value in pairs)


def _note_results(
    operator: FindOperator, first: Tensor, result: Any, args: Any, kwargs: Any
) -> None:
    """Record which results of a call are views. ``args`` and ``kwargs`` are its other arguments."""
    if not first.key_bits & ADINPLACE_OR_VIEW_BIT and is_inference(first):
        for each in result if isinstance(result, list) else (result,):
            make_inference(each)
    elif isinstance(result, Tensor):
        if shares_elements(first, result):
            _note(first, result, _replay, operator, args, kwargs)
    elif isinstance(result, list):
        for place, each in enumerate(result):
            if isinstance(each, Tensor) and shares_elements(first, each):
                replay = (_replay_one, operator, args, kwargs, place)
                _note(first, each, *replay, made_by=ONE_OF_SEVERAL)


def _replay(base: Any, operator: FindOperator, args: Any, kwargs: Any) -> Any:
    return operator()(base, *args, **kwargs)


def _replay_one(base: Any, operator: FindOperator, args: Any, kwargs: Any, place: int) -> Any:
    return operator()(base, *args, **kwargs)[place]


def _note(first: Tensor, result: Tensor, *call: Any, made_by: str = "") -> None:
    """Make ``result`` a view of the base of ``first``, or of ``first`` if that is not a view.

    ``call`` is a function that makes the same view of another tensor, followed by its other
    arguments.
    """
    counter_of(first)  # creates the version counter, which a base and its views share
    if not AUTOGRAD_STATE.get().grad_mode:
        made_by = MADE_UNDER_NO_GRAD
    outer = view_of(first)
    if outer is None:
        base, steps = first, (None, *call)
    else:
        base, steps = outer.base, (outer.replay, *call)
    make_view(result, base, steps, made_by or ("" if outer is None else outer.made_by))
    if base.requires_grad_flag and made_by == MADE_UNDER_NO_GRAD:
        result.requires_grad_flag = REQUIRED_BY_BASE  # as in PyTorch

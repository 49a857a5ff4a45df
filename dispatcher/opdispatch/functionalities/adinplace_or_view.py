"""The key ADInplaceOrView: versions are counted, and views know their bases.

PyTorch generates a kernel for each operator that writes or gives views
(``torch/csrc/autograd/ADInplaceOrViewType.cpp``); all others fall through.
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from opdispatch.autograd.differentiable_view import MADE_UNDER_NO_GRAD, ViewOf
from opdispatch.autograd.inference_tensor import (
    ADINPLACE_OR_VIEW_BIT,
    is_inference,
    make_inference,
)
from opdispatch.autograd.variable import (
    FEW_VIEWS,
    AutogradMeta,
    counter_of,
    note_view,
)
from opdispatch.autograd.view_nodes import shares_elements
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.functionalities.layer_text import FindOperator, LayerText
from opdispatch.keys.dispatch_key_set import AFTER_ADINPLACEORVIEW_KEYSET
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.schema.types import ListType
from opdispatch.tensors.tensor import Tensor

_new = object.__new__
_keys_below = AFTER_ADINPLACEORVIEW_KEYSET.__and__


def make_write_kernel(schema: FunctionSchema) -> KernelFunction:
    """Make the kernel of an operator that writes to its first argument."""
    return _WriteText(schema).compile(
        f"write of {schema.name}", _keys_below, _counter_of=counter_of
    )


class _WriteText(LayerText):
    """The text of a kernel that counts.

    An inference tensor has no counter: it is refused before it is written to.
    """

    def lines(self) -> list[str]:
        """Return the lines that call the kernel below and increment the version."""
        return [
            f"if not _isinstance({self.names[0]}, _Tensor): {self.tail_call()}",
            f"_counter = _counter_of({self.names[0]})",
            "_before = _counter.value",
            f"_result = {self.below()}",
            "_now = _counter.value",
            "_counter.value = _before + 1 if _now <= _before else _now",
            "return _result",
        ]


def make_view_kernel(schema: FunctionSchema, operator: FindOperator) -> KernelFunction:
    """Make the kernel of ``operator()``, whose results share, or may share, its first argument's
    elements.
    """
    title = f"view of {schema.name}"
    return _ViewText(schema).compile(
        title,
        _keys_below,
        _operator=operator,
        _note=_note,
        _note_results=_note_results,
        _partial=partial,
        _replay=_replay,
        _ndarray=np.ndarray,
        _BIT=ADINPLACE_OR_VIEW_BIT,
    )


class _ViewText(LayerText):
    """The text of a kernel that notes what its results are views of."""

    def lines(self) -> list[str]:
        """Return the lines that call the kernel below; of a plain array nothing is recorded."""
        first, *others = self.positional
        # The lists are for the kernel to change; those that were given are for the replay.
        kinds = {name: a.type for name, a in zip(self.names, self.arguments, strict=True)}
        below = f"_kernel_below({', '.join(self.passed)})"
        for name in (*others, *(name for _, name in self.keyword_only)):
            if isinstance(kinds[name], ListType):
                below = re.sub(rf"\b{name}(?=[,)])", f"{name}[:]", below)
        named = ", ".join(f"{given!r}: {name}" for given, name in self.keyword_only)
        given = f"({''.join(f'{name}, ' for name in others)}), {{{named}}}"
        return [
            f"if not _isinstance({first}, _Tensor): {self.tail_call()}",
            f"_result = {below}",
            f"if _type(_result) is _Tensor and {first}.key_bits & _BIT:",
            f"    _part, _whole = _result.array, {first}.array",
            "    if _type(_part) is _ndarray and _type(_whole) is _ndarray:",
            "        _owner = _part.base",
            "        if _part is _whole or _owner is not None and"
            " (_owner is _whole or _owner is _whole.base):",
            f"            _note({first}, _result, _partial(_replay, _operator, {given}))",
            "            return _result",
            f"_note_results(_operator, {first}, _result, {given})",
            "return _result",
        ]


def _note_results(
    operator: FindOperator, first: Tensor, result: Any, args: Any, kwargs: Any
) -> None:
    """Record which results of a call are views. ``args`` and ``kwargs`` are its other arguments."""
    if not first.key_bits & ADINPLACE_OR_VIEW_BIT and is_inference(first):
        for each in result if isinstance(result, list) else (result,):
            make_inference(each)
    elif isinstance(result, Tensor):
        if shares_elements(first, result):
            _note(first, result, partial(_replay, operator, args, kwargs))
    elif isinstance(result, list):
        for place, each in enumerate(result):
            if isinstance(each, Tensor) and shares_elements(first, each):
                replay = partial(_replay_one, operator, args, kwargs, place)
                _note(first, each, replay, "is one of several")


def _replay(operator: FindOperator, args: Any, kwargs: Any, base: Any) -> Any:
    return operator()(base, *args, **kwargs)


def _replay_one(operator: FindOperator, args: Any, kwargs: Any, place: int, base: Any) -> Any:
    return operator()(base, *args, **kwargs)[place]


def _note(first: Tensor, result: Tensor, replay: Callable[..., Any], made_by: str = "") -> None:
    """Make ``result`` a view of ``first``, or of what that is a view of."""
    given = first.autograd_meta
    counter = counter_of(first) if given is None or given.counter is None else given.counter
    meta = result.autograd_meta
    if meta is None:
        meta = result.autograd_meta = AutogradMeta()
    meta.counter = counter
    if not made_by and not AUTOGRAD_STATE.get().grad_mode:
        made_by = MADE_UNDER_NO_GRAD
    outer = None if given is None else given.view
    if outer is None:
        base = first
        meta.view = view = _new(ViewOf)  # without its __init__, which is one more Python function
        view.base, view.replays = first, (replay,)
        view.made_by, view.version = made_by, counter.value
    else:
        base = outer.base
        replays = (*outer.replays, replay)
        meta.view = ViewOf(base, replays, made_by or outer.made_by, counter.value)
    if not base.requires_grad_flag:
        of_base = base.autograd_meta
        views = None if of_base is None else of_base.views
        if views is not None and len(views) < FEW_VIEWS:
            views.append(weakref.ref(result))
        else:
            note_view(base, result)
    elif made_by == MADE_UNDER_NO_GRAD:
        result.requires_grad_flag = meta.is_borrowed = True  # as in PyTorch

"""``register_autograd``: kernels for the key Autograd that record a user's backward function.

Mirrors ``torch/_library/autograd.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from opdispatch.arrays import find_key_bits
from opdispatch.autograd.context import Context
from opdispatch.autograd.node import Edge, Gradients, Node
from opdispatch.autograd.recording_state import SavedTensorHooks
from opdispatch.boxing.boxing import leave_out_defaults
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.boxing.signature import Signature
from opdispatch.errors import ArgumentError, AutogradError, RegistrationError
from opdispatch.functionalities.autograd import (
    flat_list,
    go_below_autograd,
    set_history,
)
from opdispatch.functionalities.autograd_kernel_source import (
    TELL,
    AutogradKernelText,
    history_of,
)
from opdispatch.functionalities.derivative import has_tensors, title_of
from opdispatch.local_state.grad_mode import AUTOGRAD_STATE, NOT_RECORDING
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.schema.function_schema import FunctionSchema
from opdispatch.tensors.tensor import Tensor

Backward = Callable[..., Any]
SetupContext = Callable[..., Any]


class OperatorContext(Context):
    """The ``ctx`` of ``setup_context`` and ``backward``; saves plain arrays as tensors."""

    _edges: Sequence[Edge | None]
    _widths: Sequence[int | None] | None = None
    """For each positional argument, the number of tensors if it is a list, else None. None if no
    argument is a list."""
    _num_given: int | None = None
    """The number of positional arguments without trailing ones that equal their defaults, which
    PyTorch drops; None: all."""

    @property
    def needs_input_grad(self) -> tuple[Any, ...]:
        """Whether a gradient is needed, for each positional argument; a list for a list."""
        flags: list[Any] = [edge is not None for edge in self._edges]
        if self._widths is not None:
            left = iter(flags)
            flags = [
                next(left) if width is None else [next(left) for _ in range(width)]
                for width in self._widths
            ]
        return tuple(flags[: self._num_given])

    @staticmethod
    def _kept(value: Any) -> Any:
        return _as_saved(value)


class RegisteredNode(Node):
    """The graph node of a call whose operator has a registered backward.

    Kernels create it by ``__new__``, because ``__init__`` would cost time in every call, and set
    each attribute that has no default here or in ``Node``.
    """

    _results: Sequence[Any] = (None,)
    """For each result, (shape, dtype, device), or a list of these for a list of tensors.

    (None,) for an operator with one result: ``apply`` is only called if that has a gradient.
    """

    schema: FunctionSchema
    backward: Backward
    context: OperatorContext

    @property
    def name(self) -> str:
        """The operator's name, in the form of ``title_of``."""
        return title_of(self.schema)

    def keep(self, results: Sequence[Any]) -> None:
        """Set this node as the ``grad_fn`` of the results, and save the context's tensors.

        Stores the shape, dtype and device of each result, of which ``apply`` makes zeros.
        """
        flat = flat_list(results)
        for number, each in enumerate(flat):
            if isinstance(each, Tensor):
                set_history(each, self, number, ())
        self.num_results = len(flat)
        self._results = [
            [_facts(each) for each in result] if isinstance(result, list) else _facts(result)
            for result in results
        ]
        self.context.keep(flat)

    def apply(self, grads: list[Any]) -> Gradients:
        """Return the gradients that ``backward`` returns for ``grads``, one for each edge.

        Raises AutogradError for a wrong number of gradients or a value that is not a gradient.
        """
        left = iter(grads)
        given = [
            [self._given(next(left), each) for each in facts]
            if isinstance(facts, list)
            else self._given(next(left), facts)
            for facts in self._results
        ]
        found = self.context.call(self, self.backward, given)
        return self._checked(found if isinstance(found, tuple) else (found,))

    def _given(self, grad: Any, facts: Any) -> Any:
        if grad is not None or facts is None or not self.context.materializes:
            return grad
        shape, dtype, device = facts
        return array_namespace().zeros(shape, dtype=dtype, device=device)

    def _checked(self, found: tuple[Any, ...]) -> Gradients:
        """Return the gradients that ``backward`` returned, one per edge.

        Raises AutogradError for a wrong number of gradients or a value that is not a gradient.
        """
        positional = [a for a in self.schema.arguments if not a.kwarg_only]
        arguments = [a.name for a in positional]
        # PyTorch drops trailing arguments at their defaults, and expects no gradients for them.
        if 0 < len(found) < len(arguments):
            left = positional[len(found) :]
            given = self.context._num_given
            are_default = given is not None and len(found) >= given
            if are_default or all(a.has_default and not a.type.dispatches for a in left):
                found = (*found, *[None] * len(left))
        while len(found) > len(arguments) and found[-1] is None:
            found = found[:-1]
        if len(found) != len(arguments):
            raise self._error(
                f"returned {len(found)} gradients; expected {len(arguments)}, one for each of "
                f"({', '.join(arguments)})"
            )
        flat: list[Any] = []
        widths = self.context._widths or [None] * len(arguments)
        for argument, width, gradient in zip(arguments, widths, found, strict=True):
            each = [gradient]
            if width is not None:
                each = [None] * width if gradient is None else gradient
                if not isinstance(each, list | tuple) or len(each) != width:
                    raise self._error(
                        f"returned for {argument!r} no list of {width} gradients, one for each "
                        "tensor that was given, or None"
                    )
            for one in each:
                place = len(flat)
                if one is not None and not isinstance(one, Tensor):
                    raise self._error(
                        f"returned for {argument!r} a {type(one).__name__}; expected a Tensor or "
                        "None"
                    )
                if one is not None and self.facts[place] is None and not self._is_tensor(argument):
                    raise self._error(
                        f"returned a gradient for {argument!r}, which is not a tensor"
                    )
                flat.append(one)
        return flat

    def _is_tensor(self, argument: str) -> bool:
        return any(a.name == argument and has_tensors(a.type) for a in self.schema.arguments)

    def _error(self, message: str) -> AutogradError:
        name = str(self.schema.name)
        return AutogradError(f"the backward of {name} {message}", operator=name)

    def pack_saved(self, hooks: SavedTensorHooks) -> None:
        """Pack the context's saved tensors by ``hooks``."""
        self.context.pack_saved(hooks)

    def release(self) -> None:
        """Release the saved tensors."""
        self.context.release()


def make_registered_kernel(
    schema: FunctionSchema,
    backward: Backward,
    setup_context: SetupContext | None,
) -> KernelFunction:
    """Return a kernel for the key Autograd that records calls with ``backward``.

    As in PyTorch, raises RegistrationError if the operator writes to arguments, returns views or
    nothing, or takes keyword-only tensors; also if ``backward`` or ``setup_context`` cannot be
    called.
    """
    check_schema(schema, "backward")
    check_functions(schema, "backward", backward, setup_context)
    text = _RegisteredText(schema, setup_context is not None)
    defaults, _ = (signature := Signature(schema)).split(signature.converted_defaults())

    def count_given(values: Sequence[Any]) -> int:
        return len(leave_out_defaults(defaults[len(defaults) - len(values) :], values))

    return text.compile_derivative(
        title_of(schema),
        _enter=go_below_autograd,
        _set_state=AUTOGRAD_STATE.set,
        _reset_state=AUTOGRAD_STATE.reset,
        _not_recording=NOT_RECORDING,
        _Context=OperatorContext,
        _new=RegisteredNode.__new__,
        _Node=RegisteredNode,
        _schema=schema,
        _backward=backward,
        _setup_context=setup_context,
        _as_tensors=_as_tensors,
        _count_given=count_given,
    )


class _RegisteredText(AutogradKernelText):
    """The source of a kernel::

    def _kernel(_a0, _a1):
        _r0 = _isinstance(_a0, _Tensor) and _a0.requires_grad_flag
        if (_r0) and _state().grad_mode:
            _node = _new(_Node)
            _node.schema, _node.backward = _schema, _backward
            _node.edges = (_edge_of(_a0), None)
            _node.facts = (_a0's shape, dtype and device, None)
            _node.number = _next_number()
            _node.context = _context = _Context()
            _context._edges = _node.edges
            _outer = _set_state(_not_recording[_state().inference_mode])
            try:
                _token = _enter()
                try: _result = _below(_a0, _a1)
                finally: _leave(_token)
                if _type(_result) is not _Tensor or _result is _a0:
                    _result = _as_tensors(_result, (_a0, _a1))
                _setup_context(ctx=_context, inputs=(_a0, _a1), output=_result)
            finally:
                _reset_state(_outer)
            if _type(_result) is _Tensor:
                (lines of ``history_of``: set the node as the result's grad_fn)
                _context.keep((_result,))
            else:
                _node.keep((_result,))
            if _watched: _note_recorded(_node)
            return _result
        _token = _enter()  # as PyTorch, whether or not the call is recorded
        try: return _below(_a0, _a1)
        finally: _leave(_token)
    """

    def __init__(self, schema: FunctionSchema, has_setup: bool) -> None:
        positional = [n for n, a in enumerate(schema.arguments) if not a.kwarg_only]
        tensors = [n for n in positional if has_tensors(schema.arguments[n].type)]
        super().__init__(schema, tensors)
        self.all_places = positional
        self.has_setup = has_setup
        self.num_optional = 0
        """The number of trailing positional arguments that have defaults."""
        while self.num_optional < len(positional):
            if not schema.arguments[positional[-1 - self.num_optional]].has_default:
                break
            self.num_optional += 1
        self.is_one = len(schema.returns) == 1

    def not_recorded(self) -> list[str]:
        """Return the lines that call below Autograd, with every autograd key off."""
        return ["_token = _enter()", *self._call("return ")]

    def recorded(self) -> list[str]:
        """Return the lines that create the node, call below Autograd, call ``setup_context``, and
        set the history.
        """
        return [
            "_node = _new(_Node)",
            "_node.schema, _node.backward = _schema, _backward",
            *self.edges(self.all_places),
            "_node.number = _next_number()",  # the edges' nodes have lower ones
            "_node.context = _context = _Context()",
            "_context._edges = _node.edges",
            *self._widths(),
            *self._num_given(),
            "_outer = _set_state(_not_recording[_state().inference_mode])",
            "try:",
            "    _token = _enter()",
            *(f"    {line}" for line in [*self._call("_result = "), *self._output()]),
            "finally:",
            "    _reset_state(_outer)",
            *self._end(),
            TELL,
            "return _result",
        ]

    def _call(self, what: str) -> list[str]:
        return ["try:", f"    {what}{self.below()}", "finally:", "    _leave(_token)"]

    def _widths(self) -> list[str]:
        if not any(map(self.is_list, self.places)):
            return []
        texts = ["None"] * len(self.all_places)
        for n, place in enumerate(self.all_places):
            if place in self.places and self.is_list(place):
                name = self.names[place]
                texts[n] = f"_len({name}) if _type({name}) is _list else None"
        return [f"_context._widths = ({', '.join(texts)},)"]

    def _num_given(self) -> list[str]:
        if not (first := len(self.all_places) - self.num_optional) < len(self.all_places):
            return []
        values = "".join(f"{self.names[place]}, " for place in self.all_places[first:])
        return [f"_context._num_given = {first} + _count_given(({values}))"]

    def _output(self) -> list[str]:
        """Return the lines that prepare the results for a history and call ``setup_context``."""
        inputs = f"({''.join(f'{name}, ' for name in self.positional)})"
        given = self.given()
        if not self.is_one:
            lines = [f"_result = _tuple([_as_tensors(_each, {given}) for _each in _result])"]
        else:
            lines = [f"if {self.is_other('_result')}: _result = _as_tensors(_result, {given})"]
        if self.has_setup:
            pairs = [f"{a.name!r}: {n}" for n, a in zip(self.names, self.arguments, strict=True)]
            named = pairs[len(self.positional) :]
            keywords = f"keyword_only_inputs={{{', '.join(named)}}}, " if named else ""
            lines.append(f"_setup_context(ctx=_context, inputs={inputs}, {keywords}output=_result)")
        return lines

    def _end(self) -> list[str]:
        """Return the lines that set the node as the results' ``grad_fn``."""
        if not self.is_one:
            return ["_node.keep(_result)"]
        return [
            "if _type(_result) is _Tensor:",
            *(f"    {line}" for line in history_of("_result", "0")),
            "    _context.keep((_result,))",
            "else:",
            "    _node.keep((_result,))",
        ]


def check_schema(schema: FunctionSchema, what: str) -> None:
    """Raise RegistrationError if the operator cannot have a registered ``what``.

    It cannot if it writes to arguments, returns views or nothing, or takes keyword-only tensors.
    """
    named = [a.name for a in schema.arguments if a.kwarg_only and a.type.dispatches]
    reason = ""
    if schema.is_mutable:
        reason = "it writes to its arguments"
    elif any(returned.alias_info is not None for returned in schema.returns):
        reason = "it gives views of its arguments"
    elif not schema.returns:
        reason = "it returns nothing"
    elif named:
        reason = f"its keyword-only argument {named[0]!r} is a tensor"
    if reason:
        raise RegistrationError(
            f"a {what} cannot be registered for {schema.name}: {reason}",
            hint="register a kernel for Autograd" if what == "backward" else "",
            operator=str(schema.name),
        )


def check_functions(
    schema: FunctionSchema, name: str, derivative: object, setup_context: object
) -> None:
    """Raise RegistrationError if ``derivative`` or ``setup_context`` is not callable.

    ``setup_context`` may be None; ``name`` is how the error refers to ``derivative``.
    """
    for what, function in ((name, derivative), ("setup_context", setup_context)):
        if not callable(function) and (function is not None or what == name):
            raise RegistrationError(
                f"{what} of {schema.name} is of type {type(function).__name__}, which cannot be "
                "called; expected a function",
                operator=str(schema.name),
            )


def _facts(result: Any) -> Any:
    if not isinstance(result, Tensor):
        return None
    array = result.array
    if type(array) is np.ndarray:
        return array.shape, array.dtype, "cpu"
    return result.shape, result.dtype, result.device


def _as_saved(value: Any) -> Any:
    if value is None or isinstance(value, Tensor):
        return value
    if find_key_bits(value) is None:
        raise ArgumentError(
            f"save_for_backward keeps tensors, not {type(value).__name__}",
            hint="make it an attribute of the context",
        )
    return Tensor(value)  # an argument that was given as a plain array


def _as_tensors(result: Any, given: Sequence[Any]) -> Any:
    """Return the result as tensors that can have a history; detach those that are arguments."""
    if isinstance(result, Tensor):
        for each in given:
            if each is result:
                return result.detach()
        return result
    if isinstance(result, list):
        return [_as_tensors(each, given) for each in result]
    return Tensor(result) if hasattr(result, "dtype") and hasattr(result, "shape") else result

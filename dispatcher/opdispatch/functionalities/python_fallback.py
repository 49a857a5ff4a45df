"""``__torch_dispatch__``: modes, and tensor classes that handle operators themselves.

    class Counted:                              # registered with register_tensor_type
        key_bits = DispatchKeySet.of(DispatchKey.Python).bits

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None): ...

Tensors of classes derived from ``Tensor`` always have the key. If the class does not define
``__torch_dispatch__``, kernels get plain tensors and return plain tensors.

A call with such a tensor, or under a ``TorchDispatchMode``, reaches the Python key. Its fallback
passes the operator's handle, the classes among the arguments, and the arguments without trailing
defaults to one handler after the other, until one returns something other than NotImplemented:

1. the topmost mode; while it runs, that mode and every key above Python are off;
2. the classes of the arguments, subclasses before their bases.

A function registered by ``register_torch_dispatch`` for an operator and a mode or class is called
in place of that handler. If there is no handler at all, the call is redispatched below Python, with
every key above Python off.

PyTorch registers these fallbacks in ``PythonFallbackKernel.cpp``; the order of the classes is that
of ``torch/csrc/utils/python_arg_parser.cpp``. PreDispatch calls the modes of that key, as in
``torch/_ops.py``. PythonTLSSnapshot has no state to save here, so it redispatches. PythonDispatcher
raises an error, because there is no Python dispatcher.

https://docs.pytorch.org/docs/stable/notes/extending.html#extending-torch-native-api
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.arrays import find_key_bits
from opdispatch.boxing.boxing import split_without_defaults
from opdispatch.boxing.kernel_function import KernelFunction
from opdispatch.errors import ArgumentError
from opdispatch.functionalities.redispatch_below import redispatch_below
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.local_state.local_dispatch_key_set import (
    ForceDispatchKeyGuard,
    local_dispatch_key_set,
)
from opdispatch.local_state.torch_dispatch_mode import (
    ABOVE_PYTHON,
    BELOW_PYTHON,
    dispatch_modes,
    top_mode_off,
)
from opdispatch.tensors.tensor import Tensor, handles_operators, of_plain_class

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_K = DispatchKey
_BELOW_PRE_DISPATCH = DispatchKeySet.full_after(_K.PreDispatch)


def dispatch_to_python(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Pass the call to the handlers of modes and classes; without any, redispatch below Python.

    Raises NoKernelError if there is neither a tensor nor a mode, and ArgumentError if every handler
    returns NotImplemented.
    """
    tensors = _tensors_of(stack)
    types = _handling(tensors)
    asked = []
    if modes := dispatch_modes():
        if _ask_mode(op, _K.Python, types, stack):
            return
        asked.append(f"the mode {type(modes[-1]).__qualname__}")
    elif not tensors:
        raise op.no_kernel_error(
            "Python", f"{op.name} arrived at Python without a tensor whose class could handle it"
        )
    if not asked and not types:
        _redispatch_plain(op, keys, stack)
    elif not _ask_classes(op, types, tensors, stack):
        raise _unhandled(op, [*asked, *(cls.__qualname__ for cls in types)])


def call_below_python(op: OperatorHandle, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call an operator without its handlers, as ``Tensor.__torch_dispatch__`` does."""
    signature = op.call_signature
    stack = signature.bind(args, kwargs)
    _redispatch_plain(op, op.dispatch_keys(stack), stack)
    return signature.unbox_returns(stack)


def _redispatch_plain(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Redispatch below Python, with plain tensors and with every key above Python off."""
    given = {id(plain): tensor for tensor, plain in _make_plain(stack)}
    included, excluded = local_dispatch_key_set()
    included = included.remove(_K.Python)
    with ForceDispatchKeyGuard(included, excluded | ABOVE_PYTHON):
        op.redispatch_boxed(keys & BELOW_PYTHON, stack)
    if given:  # a written argument is returned as the object that the caller passed
        stack[:] = [given.get(id(value), value) for value in stack]


def _make_plain(stack: list[Any]) -> list[tuple[Tensor, Tensor]]:
    """Replace instances of Tensor subclasses with plain tensors; return (given, plain) pairs."""
    pairs = []
    for place, value in enumerate(stack):
        if isinstance(value, list):
            stack[place] = value = list(value)
            pairs += _make_plain(value)
        elif isinstance(value, Tensor) and type(value) is not Tensor:
            stack[place] = of_plain_class(value)
            pairs.append((value, stack[place]))
    return pairs


def dispatch_before_all(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Pass the call to the topmost mode of PreDispatch; without one, redispatch below that key.

    Raises ArgumentError if the mode returns NotImplemented.
    """
    if not (modes := dispatch_modes(_K.PreDispatch)):
        op.redispatch_boxed(keys & _BELOW_PRE_DISPATCH, stack)
    elif not _ask_mode(op, _K.PreDispatch, _handling(_tensors_of(stack)), stack):
        raise _unhandled(op, [f"the mode {type(modes[-1]).__qualname__}"])


def _ask_mode(
    op: OperatorHandle, key: DispatchKey, types: list[type[Any]], stack: list[Any]
) -> bool:
    signature = op.call_signature
    args, kwargs = split_without_defaults(signature, stack)
    with top_mode_off(key) as mode:
        result = _answer_of(op, mode, type(mode), types, args, kwargs)
    if result is NotImplemented:
        return False
    stack[:] = signature.box_returns(result)
    return True


def _ask_classes(
    op: OperatorHandle, types: list[type[Any]], tensors: list[Any], stack: list[Any]
) -> bool:
    signature = op.call_signature
    args, kwargs = split_without_defaults(signature, stack)
    for cls in types:
        # Pass the first tensor of the class: as in PyTorch, the handler may be an instance method.
        tensor = next(each for each in tensors if type(each) is cls)
        result = _answer_of(op, tensor, cls, types, args, kwargs)
        if result is not NotImplemented:
            stack[:] = signature.box_returns(result)
            return True
    return False


def _answer_of(
    op: OperatorHandle,
    asked: Any,
    cls: type[Any],
    types: Sequence[type[Any]],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Return the result of the registered rule for the mode or class, else of its own handler."""
    rule = op.dispatcher.find_dispatch_rule(op.name, cls)
    if rule is not None:
        mode_or_class = cls if cls in types else asked
        return rule(mode_or_class, op, tuple(types), tuple(args), kwargs)
    return asked.__torch_dispatch__(op, tuple(types), tuple(args), kwargs)


def _unhandled(op: OperatorHandle, asked: list[str]) -> ArgumentError:
    names = ", ".join(asked)
    return ArgumentError(
        f"no mode and no class among the tensors of a call of {op.name} handles it: {names}",
        operator=str(op.name),
    )


def _tensors_of(stack: list[Any]) -> list[Any]:
    return [value for value in _flat(stack) if find_key_bits(value) is not None]


def _handling(tensors: list[Any]) -> list[type[Any]]:
    """Return the classes that handle operators, subclasses before their bases."""
    types: list[type[Any]] = []
    for cls in map(type, tensors):
        if cls not in types and handles_operators(cls):
            place = next((n for n, other in enumerate(types) if issubclass(cls, other)), len(types))
            types.insert(place, cls)
    return types


def _flat(stack: list[Any]) -> Iterator[Any]:
    for value in stack:
        yield from value if isinstance(value, list) else [value]


def refuse_python_dispatcher(op: OperatorHandle, keys: DispatchKeySet, stack: list[Any]) -> None:
    """Raise NoKernelError."""
    raise op.no_kernel_error(
        "PythonDispatcher", f"{op.name} arrived at PythonDispatcher, and no such dispatcher is set"
    )


FALLBACKS = {
    _K.Python: KernelFunction.from_boxed(dispatch_to_python),
    _K.PythonDispatcher: KernelFunction.from_boxed(refuse_python_dispatcher),
    _K.PythonTLSSnapshot: redispatch_below(_K.PythonTLSSnapshot),
    _K.PreDispatch: KernelFunction.from_boxed(dispatch_before_all),
}

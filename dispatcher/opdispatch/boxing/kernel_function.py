"""A kernel: a function behind a table slot, callable boxed and unboxed.

Mirrors ``ATen/core/boxing/KernelFunction.h``. Boxed, a kernel takes one stack of values and
replaces its arguments by its returns. Unboxed, it takes the operator's arguments, positional
ones by position and keyword-only ones by name, and returns its returns. A kernel can be called both
ways, whichever it was made from; ``boxing.py`` has the adapters.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from opdispatch.boxing import read_only_arguments
from opdispatch.boxing.boxing import (
    BoxedFunction,
    UnboxedFunction,
    boxed_from_unboxed,
    elide_defaults,
    split_without_defaults,
    unboxed_from_boxed,
)
from opdispatch.boxing.read_only_arguments import with_read_only_arguments
from opdispatch.errors import KernelTypeError
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.schema.function_schema import FunctionSchema, OperatorName
from opdispatch.schema.parser import parse_schema

if TYPE_CHECKING:
    from opdispatch.boxing.kernel_operator import KernelOperator
    from opdispatch.boxing.signature import Signature

FindKeys = Callable[[DispatchKeySet], DispatchKeySet]
MakeFunction = Callable[[Any, DispatchKeySet], UnboxedFunction]


class KernelFunction:
    """A kernel, made by one of the class methods; immutable.

    ``function`` is the registered function: None for a fallthrough, and for a kernel whose function
    is created by its first call. ``signature`` declares the kernel's arguments and returns, as a
    schema without a name; None if undeclared (PyTorch infers one for C++ functions only).
    Registrations for one operator must have equal signatures.
    """

    __slots__ = (
        "_adapted",
        "_boxed",
        "_make",
        "_make_for",
        "_make_without_gradients",
        "function",
        "is_elsewhere",
        "is_fallthrough",
        "signature",
        "with_keyset",
    )

    def __init__(
        self,
        function: Callable[..., Any] | None,
        *,
        boxed: BoxedFunction | None = None,
        make_for: MakeFunction | None = None,
        make_without_gradients: MakeFunction | None = None,
        make: Callable[[], UnboxedFunction] | None = None,
        with_keyset: bool = False,
        is_fallthrough: bool = False,
        is_elsewhere: bool = False,
        signature: FunctionSchema | None = None,
    ) -> None:
        self.function = function
        self.signature = signature
        self.with_keyset = with_keyset
        self.is_fallthrough = is_fallthrough
        self.is_elsewhere = is_elsewhere
        self._boxed = boxed
        self._make_for = make_for
        self._make_without_gradients = make_without_gradients
        self._make = make
        # The signature of the last call, and the unboxed function adapted to it. A tuple, replaced
        # as a whole, so no lock is needed.
        self._adapted: tuple[Signature, UnboxedFunction] | None = None

    @classmethod
    def from_unboxed(
        cls, function: UnboxedFunction, *, with_keyset: bool = False, signature: str = ""
    ) -> KernelFunction:
        """Make a kernel from a Python function of the operator's arguments.

        With ``with_keyset``, the dispatch key set of the call comes first. With ``signature``, such
        as ``"(Tensor x) -> Tensor"``, it can only be registered for an operator of that signature.
        Raises KernelTypeError if ``function`` is not callable, SchemaError if ``signature`` does
        not parse.
        """
        parsed = None
        if signature:
            # The grammar requires a name, which a kernel does not have.
            parsed = parse_schema(f"kernel{signature}").with_name(OperatorName(""))
        return cls(_callable(function), with_keyset=with_keyset, signature=parsed)

    @classmethod
    def from_maker(cls, make: Callable[[], UnboxedFunction]) -> KernelFunction:
        """Make a kernel whose function ``make()`` creates at the first call.

        For libraries of many operators, of which a process calls few. Threads that arrive at the
        same time may each make one.
        """
        return cls(None, make=_callable(make))

    @classmethod
    def from_boxed(
        cls,
        function: BoxedFunction,
        *,
        is_elsewhere: bool = False,
        make_without_gradients: MakeFunction | None = None,
    ) -> KernelFunction:
        """Make a kernel of ``function(op, keys, stack)``, which changes the stack in place.

        ``is_elsewhere`` says that it only forwards the call to another process.
        ``make_without_gradients(op, keys)`` returns an equivalent function of all the operator's
        arguments for calls without arguments that require gradients: see ``linked``.
        """
        return cls(
            _callable(function),
            boxed=function,
            is_elsewhere=is_elsewhere,
            make_without_gradients=make_without_gradients,
        )

    @classmethod
    def from_fallback(
        cls, function: Callable[..., Any], *, with_keyset: bool = False
    ) -> KernelFunction:
        """Make a kernel for any operator from ``function(op, *args, **kwargs)``.

        With ``with_keyset``, the dispatch key set of the call comes first. Arguments equal to their
        defaults are omitted: trailing ones, and keywords. This is the convention of
        ``torch.library.Library.fallback``.
        """
        _callable(function)

        def boxed(op: KernelOperator, keys: DispatchKeySet, stack: list[Any]) -> None:
            signature = op.call_signature
            args, kwargs = split_without_defaults(signature, stack)
            first = (keys, op) if with_keyset else (op,)
            stack[:] = signature.box_returns(function(*first, *args, **kwargs))

        return cls(function, boxed=boxed, with_keyset=with_keyset)

    @classmethod
    def from_operator(cls, make: MakeFunction) -> KernelFunction:
        """Make a kernel for any operator whose function can be cached for many calls.

        ``make(op, keys)`` returns a function of all the operator's arguments, for calls with these
        keys. It is cached until something is registered for the operator.
        """
        return cls(_callable(make), make_for=make)

    @classmethod
    def from_layer(
        cls,
        make: Callable[[UnboxedFunction], UnboxedFunction],
        keys_below: FindKeys,
        *,
        is_for_gradients: bool = False,
    ) -> KernelFunction:
        """Make a kernel that wraps the kernel for other keys, usually those below.

        ``make(below)`` returns a function of all the operator's arguments. ``below`` is the
        operator's ``redispatch_converted`` for ``keys_below(keys of the call)``; its kernel is
        looked up when the function is made, once for all calls with the same keys. To pass a call
        on unchanged, ``return below.kernel(...)`` is cheaper. With ``is_for_gradients``, calls
        without arguments that require gradients skip this kernel.
        """

        def make_for(op: KernelOperator, keys: DispatchKeySet) -> UnboxedFunction:
            return make(op.redispatch_function(keys_below(keys)))

        def kernel_below(op: KernelOperator, keys: DispatchKeySet) -> UnboxedFunction:
            kernel: UnboxedFunction = op.redispatch_function(keys_below(keys)).kernel  # type: ignore[attr-defined]
            return kernel

        return cls(
            _callable(make),
            make_for=make_for,
            make_without_gradients=kernel_below if is_for_gradients else None,
        )

    @classmethod
    def fallthrough(cls) -> KernelFunction:
        """Return the kernel that is never called: calls continue with the next key."""
        return cls(None, is_fallthrough=True)

    @property
    def is_boxed(self) -> bool:
        """Whether the kernel was made from a function of a stack."""
        return self._boxed is not None

    @property
    def is_layer(self) -> bool:
        """Whether the kernel is made for each operator, wrapping that operator's next kernel."""
        return self._make_for is not None

    @property
    def is_for_gradients(self) -> bool:
        """Whether ``linked`` skips it in calls without arguments that require gradients."""
        return self._make_without_gradients is not None

    @property
    def documentation(self) -> str:
        """The docstring of the function, or ""."""
        documentation = self.function.__doc__ if self.function is not None else None
        return inspect.cleandoc(documentation) if isinstance(documentation, str) else ""

    def unboxed(self, op: KernelOperator, keys: DispatchKeySet) -> UnboxedFunction:
        """Return the kernel as a function of ``op``'s arguments, for calls with ``keys``.

        It is valid for ``op`` as it is now: keep it only in its ``OperatorState``.
        """
        if self._boxed is not None:
            return unboxed_from_boxed(self._boxed, op, keys)
        if self._make_for is not None:
            return self._make_for(op, keys)
        signature, adapted = op.call_signature, self._adapted
        if adapted is None or adapted[0] is not signature:
            adapted = self._adapted = (signature, self.adapt(signature))
        function = partial(adapted[1], keys) if self.with_keyset else adapted[1]
        if read_only_arguments.STRICT:
            return with_read_only_arguments(function, signature.schema, keys)
        return function

    def linked(
        self, op: KernelOperator, keys: DispatchKeySet, *, is_recorded: bool
    ) -> UnboxedFunction:
        """Return ``unboxed`` for unobserved calls: one function for all keys that they pass.

        Unless ``is_recorded``, no argument requires gradients, and kernels for Autograd that then
        have nothing to do are skipped.
        """
        if is_recorded or self._make_without_gradients is None:
            return self.unboxed(op, keys)
        return self._make_without_gradients(op, keys)

    def adapt(self, signature: Signature) -> UnboxedFunction:
        """Return its function, adapted to calls with every argument of ``signature``.

        With ``with_keyset``, the key set comes first. Not for boxed kernels and layers.
        """
        function = self.function if self._make is None else self._make()
        assert function is not None, "a fallthrough is never called"
        return elide_defaults(function, signature, skip=int(self.with_keyset))

    def boxed(self, op: KernelOperator, keys: DispatchKeySet) -> Callable[[list[Any]], None]:
        """Return the kernel as a function of a stack of ``op``'s arguments, for ``keys``."""
        if self._boxed is not None:
            return partial(self._boxed, op, keys)
        return boxed_from_unboxed(self.unboxed(op, keys), op.call_signature)

    def call_boxed(self, op: KernelOperator, keys: DispatchKeySet, stack: list[Any]) -> None:
        """Replace the arguments on ``stack``, in schema order, by the returns."""
        self.boxed(op, keys)(stack)

    def __repr__(self) -> str:
        if self.is_fallthrough:
            return "<KernelFunction fallthrough>"
        if self._make is not None:
            return "<KernelFunction unboxed, made when it is called>"
        kind = "boxed" if self.is_boxed else "layer" if self.is_layer else "unboxed"
        return f"<KernelFunction {kind} {getattr(self.function, '__qualname__', self.function)}>"


def _callable(function: Callable[..., Any]) -> Callable[..., Any]:
    if not callable(function):
        raise KernelTypeError(f"a kernel must be callable, and {function!r} is not")
    return function


class _FallthroughKernel:
    """A marker: registered as a kernel, it makes calls continue with the next dispatch key."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError("fallthrough_kernel says how to register, and is never called")

    def __repr__(self) -> str:
        return "fallthrough_kernel"


fallthrough_kernel = _FallthroughKernel()

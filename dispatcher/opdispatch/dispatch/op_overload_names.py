"""The attributes of PyTorch's ``OpOverload`` in ``torch/_ops.py``, under the same names.

They are for code written for PyTorch's operators, above all handlers of ``__torch_dispatch__``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from opdispatch.errors import OperatorNotFoundError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet

if TYPE_CHECKING:
    from opdispatch.boxing.signature import Signature
    from opdispatch.schema.function_schema import FunctionSchema, OperatorName


class OpOverloadNames:
    """The base of ``OperatorHandle`` with PyTorch's attributes."""

    __slots__ = ()

    if TYPE_CHECKING:  # attributes of OperatorHandle

        @property
        def name(self) -> OperatorName:
            """Its name."""

        @property
        def dispatcher(self) -> Any:
            """The dispatcher to which it belongs."""

        @property
        def schema(self) -> FunctionSchema:
            """Its schema."""

        @property
        def call_signature(self) -> Signature:
            """The signature of a call in progress."""

        def has_kernel_for_dispatch_key(self, key: DispatchKey | str) -> bool:
            """Return whether a kernel is registered for exactly ``key``."""

        def call_boxed_for_dispatch_key(self, key: DispatchKey | str, stack: list[Any]) -> None:
            """Call the kernel in the slot of ``key``."""

    @property
    def _handle(self) -> Self:
        """The operator itself, under PyTorch's name for the object that dispatches."""
        return self

    @property
    def namespace(self) -> str:
        """The part of the name before ``::``."""
        return self._handle.name.namespace

    _namespace = namespace

    @property
    def _opname(self) -> str:
        """The name without namespace and overload."""
        return self._handle.name.unqualified_name

    @property
    def _overloadname(self) -> str:
        """``"default"`` for the overload without a name."""
        return self._handle.name.overload_name or "default"

    @property
    def _name(self) -> str:
        """The full name, as a string."""
        return str(self._handle.name)

    @property
    def _schema(self) -> FunctionSchema:
        """The schema."""
        return self._handle.schema

    @property
    def __name__(self) -> str:
        """``"sobel.default"`` of ``image::sobel``."""
        return f"{self._opname}.{self._overloadname}"

    @property
    def op(self) -> Self:
        """The operator itself."""
        return self

    @property
    def overloadpacket(self) -> Any:
        """``ops.namespace.name``, which has this overload.

        Raises OperatorNotFoundError for an operator of a dispatcher that has no ``Ops``.
        """
        packet_of = self._handle.dispatcher.packet_of
        if packet_of is None:
            raise OperatorNotFoundError(
                f"{self._handle.name} is of a dispatcher without packets",
                hint="make them with opdispatch.ops.Ops(dispatcher)",
                operator=str(self._handle.name),
            )
        return packet_of(self._handle.name)

    @property
    def is_view(self) -> bool:
        """Whether, by its schema, results share the elements of arguments it does not write to."""
        shared = [a.alias_info for a in self._handle.schema.arguments if a.alias_info is not None]
        return bool(shared) and not any(alias.is_write for alias in shared)

    def has_kernel_for_any_dispatch_key(self, keys: DispatchKeySet) -> bool:
        """Return whether a kernel is registered for exactly one of these keys."""
        return any(self._handle.has_kernel_for_dispatch_key(key) for key in keys)

    def _can_decompose(self) -> bool:
        """Return whether ``decompose`` has a kernel to call."""
        return self._handle.has_kernel_for_dispatch_key(DispatchKey.CompositeImplicitAutograd)

    def decompose(self, *args: Any, **kwargs: Any) -> Any:
        """Call its CompositeImplicitAutograd kernel; return NotImplemented if it has none."""
        if not self._can_decompose():
            return NotImplemented
        signature = self._handle.call_signature
        stack = signature.bind(args, kwargs)
        self._handle.call_boxed_for_dispatch_key(DispatchKey.CompositeImplicitAutograd, stack)
        return signature.unbox_returns(stack)

    def __copy__(self) -> Self:
        """Return itself: an operator has a single handle."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __str__(self) -> str:
        return f"{self.namespace}.{self._opname}.{self._overloadname}"

"""``get_kernel``: the kernel of an operator for a dispatch key, callable directly.

    halve = get_kernel("array::divide.Scalar", "CPU")
    lib = Library("array", "IMPL")

    @impl(lib, "divide.Scalar", "CPU", with_keyset=True)
    def divide(keys, x, y):
        return halve.call_boxed(keys, x, y) if y == 2 else ...

Mirrors ``SafeKernelFunction`` of ``ATen/core/boxing/KernelFunction.h``.
"""

from __future__ import annotations

from typing import Any

from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.dispatch.operator_state import Resolution
from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch.errors import ArgumentError, DispatchKeyError, NoKernelError
from opdispatch.keys.dispatch_key import DispatchKey, parse_dispatch_key
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS, DispatchKeySet
from opdispatch.library.custom_operator import CustomOpDef
from opdispatch.library.library import default_dispatcher


def get_kernel(
    op: str | OperatorHandle | CustomOpDef[..., Any], dispatch_key: str | DispatchKey
) -> SafeKernelFunction:
    """Return the kernel that serves a runtime key of an operator, including fallbacks.

    The result keeps referring to that kernel when another one overrides it, so an overriding kernel
    can call it. ``op`` is an operator or its name, ``"array::add.Tensor"``. Raises
    OperatorNotFoundError, DispatchKeyError for an alias key or an invalid one, NoKernelError if
    there is no kernel or it is in another interpreter, AmbiguousKernelError, and ArgumentError for
    an invalid ``op``. As ``torch.library.get_kernel``.
    """
    if isinstance(op, CustomOpDef):
        op = op.overload
    if isinstance(op, str):
        op = default_dispatcher().get_schema(op)
    if not isinstance(op, OperatorHandle):
        raise ArgumentError(f"get_kernel takes an operator or its name, not {op!r}")
    key = parse_dispatch_key(dispatch_key) if isinstance(dispatch_key, str) else dispatch_key
    if key not in RUNTIME_KEYS:
        raise DispatchKeyError(
            f"{key} is an alias or a functionality, at which no call of {op.name} arrives",
            hint="ask for a runtime key, such as CPU",
            key=str(key),
        )
    with op.dispatcher.hold_publications():
        found = op.lookup(DispatchKeySet.of(key))
        if found.kernel.is_elsewhere:
            raise NoKernelError(
                f"the kernel of {op.name} for {key} is in another interpreter, where only calls of "
                "the operator arrive",
                hint="load what needs it into the same interpreter",
                operator=str(op.name),
                key=str(key),
            )
        return SafeKernelFunction(op, found)


class SafeKernelFunction:
    """A kernel that stays callable, even if overridden, until its library is unloaded."""

    def __init__(self, op: OperatorHandle, found: Resolution) -> None:
        self._op = op
        self._found = found
        self._handle: RegistrationHandle | None = op.dispatcher.find_handle(found.registration)

    @property
    def op_handle(self) -> OperatorHandle:
        """The operator to which the kernel belongs."""
        return self._op

    def call_boxed(self, keys: DispatchKeySet, /, *args: Any, **kwargs: Any) -> Any:
        """Call the kernel with the operator's arguments, for a call with these keys.

        Arguments and results are converted as in calls of the operator. Raises NoKernelError if the
        kernel is no longer registered, OperatorNotFoundError if the operator is no longer defined,
        ArgumentError, ReturnError, and the kernel's own errors.
        """
        if not isinstance(keys, DispatchKeySet):
            raise ArgumentError(
                f"call_boxed takes a DispatchKeySet before the arguments, not {type(keys).__name__}"
            )
        self._check_registered()
        op = self._op.dispatcher.get_schema(self._op.name)
        stack = op.bind(args, kwargs)
        self._found.kernel.call_boxed(op, keys, stack)
        return op.signature.unbox_returns(op.check_returns(stack))

    def _check_registered(self) -> None:
        if self._handle is None or not self._handle.live:
            # It may have been registered once more, because its library was published anew.
            registration = self._found.registration
            self._handle = self._op.dispatcher.find_handle(registration)
            if self._handle is None:
                raise NoKernelError(
                    f"the kernel of {self._op.name} for {self._found.key} that was "
                    f"{registration.debug} is gone: the library that had it was unloaded",
                    operator=str(self._op.name),
                    key=str(self._found.key),
                )

    def __repr__(self) -> str:
        return f"<SafeKernelFunction of {self._op.name}, {self._found.registration.debug}>"

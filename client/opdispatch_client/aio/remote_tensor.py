"""Remote tensors of an asyncio session. Written by hand, as ``blocking.remote_tensor`` is."""

from __future__ import annotations

from typing import Any, NoReturn

from opdispatch.errors import ArgumentError
from opdispatch.tensors.operators import is_operand
from opdispatch_client.aio.tensor_transfers import AsyncTensorTransfers


class AsyncRemoteTensor(AsyncTensorTransfers):
    """A tensor that stays in its interpreter, for an asyncio session: ``await t.numpy()``.

    Operations that cannot await its elements raise ArgumentError: Python's operators and
    conversions, and NumPy. It is hashed and compared by identity, like any object.
    """

    __slots__ = ()

    def _refuse(self, *args: Any, **options: Any) -> NoReturn:
        raise ArgumentError(
            "the elements of an AsyncRemoteTensor are in another process, and this operation "
            "cannot await them",
            hint="use the result of `await tensor.numpy()`, or call operators with the tensor",
        )

    def _calculate(self, other: object) -> Any:
        if isinstance(other, AsyncRemoteTensor) or is_operand(other):
            self._refuse()
        return NotImplemented

    __bool__ = __int__ = __float__ = __complex__ = _refuse
    __array__ = __array_ufunc__ = _refuse
    __neg__ = __pos__ = __abs__ = __invert__ = _refuse
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = _calculate
    __add__ = __sub__ = __mul__ = __matmul__ = __truediv__ = __floordiv__ = __mod__ = _calculate
    __pow__ = __and__ = __or__ = __xor__ = __lshift__ = __rshift__ = _calculate
    __radd__ = __rsub__ = __rmul__ = __rmatmul__ = __rtruediv__ = __rfloordiv__ = _calculate
    __rmod__ = __rpow__ = __rand__ = __ror__ = __rxor__ = __rlshift__ = __rrshift__ = _calculate
    __hash__ = object.__hash__

"""Remote tensors of a blocking session. Written by hand, as ``aio.remote_tensor`` is.

Note [Calculating elsewhere]
    In this process's dispatcher, a blocking session's remote tensor has the key Python. As for any
    class with ``__torch_dispatch__``, the fallback for that key calls the method, which makes the
    same call through the session, with `remote`. So ``opdispatch.array_api``, and any other code
    that calls operators in this process, computes in the tensor's interpreter. Keys that this
    process excludes, by modes or on behalf of a local tensor among the arguments, are not excluded
    there: ``no_grad`` decides whether the call is recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import numpy as np

from opdispatch import DispatchKey, DispatchKeySet, ForceDispatchKeyGuard
from opdispatch.arrays import give_by_dlpack, register_tensor_type
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key_set import AUTOGRAD_KEYSET
from opdispatch.local_state.lazy_imports import array_namespace
from opdispatch.local_state.local_dispatch_key_set import local_dispatch_key_set_is_default
from opdispatch.local_state.torch_dispatch_mode import keys_outside_modes
from opdispatch.local_state.tracing_state import is_traced
from opdispatch.tensors.operators import TensorOperators
from opdispatch_client.blocking.tensor_transfers import TensorTransfers

Array = np.ndarray[Any, Any]
_RECORDING = AUTOGRAD_KEYSET.add(DispatchKey.ADInplaceOrView)


class RemoteTensor(TensorTransfers, TensorOperators):
    """A tensor that stays in its interpreter, for a blocking session.

    ``numpy()`` fetches its elements, as do NumPy's functions and ``from_dlpack``. Operators of this
    process, including those of ``opdispatch.array_api`` and Python's own (``x + 1``, ``x[0]``), run
    where the tensor is if it is one of their arguments; their results stay there. It is a context
    manager that closes the tensor.
    """

    __slots__ = ()

    key_bits = DispatchKeySet.of(DispatchKey.Python).bits
    __hash__ = object.__hash__  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(
        cls,
        func: OperatorHandle,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Call the operator in the session. See Note [Calculating elsewhere]."""
        kwargs = kwargs or {}
        call = _first_of(cls, [*args, *kwargs.values()])._elsewhere.call
        if local_dispatch_key_set_is_default():
            return call(str(func.name), args, kwargs)
        included, excluded = keys_outside_modes()
        with ForceDispatchKeyGuard(included, excluded - _RECORDING):
            return call(str(func.name), args, kwargs)

    def detach(self) -> Self:
        """Return the same elements without their history: a call of ``array::detach``."""
        from opdispatch.array_api.operators import OPERATORS

        detached: Self = OPERATORS.detach.default(self)
        return detached

    def _move(self, device: str, deadline: float | None) -> Any:
        if is_traced(self):  # by a call, so that the trace has it
            return array_namespace().astype(self, self.dtype, device=device)
        return super()._move(device, deadline)

    @property
    def array(self) -> Array:
        """The elements; as ``numpy()``."""
        # code that reads the tensor as a number has been noted already
        return self._elsewhere.fetch(self)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        if copy is False:
            raise ValueError("the elements of a remote tensor are in another process: copy them")
        if self._facts.layout:
            raise ArgumentError(
                f"a {self._facts.layout} tensor is not a dense array", hint="get it with numpy()"
            )
        array = self.numpy()
        return array if dtype is None else array.astype(dtype, copy=False)

    def __dlpack__(self, **options: Any) -> Any:
        if options.get("copy") is False:
            raise BufferError("the elements of a remote tensor are in another process: copy them")
        return give_by_dlpack(self.__array__(), **options)

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)  # fetched elements are in this host's memory

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


register_tensor_type(RemoteTensor)


def _first_of(cls: type[RemoteTensor], values: Sequence[Any]) -> RemoteTensor:
    """Return the first remote tensor, also in lists."""
    for value in values:
        if isinstance(value, cls):
            return value
        if isinstance(value, list) and any(isinstance(item, cls) for item in value):
            return _first_of(cls, value)
    raise AssertionError("a call that arrives at Python has a tensor of a class that handles it")

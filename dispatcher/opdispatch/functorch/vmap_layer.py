"""The level of ``vmap``: calls with batched tensors are served by batching rules.

Mirrors ``functorch/VmapInterpreter.cpp``, and ``BatchRulesRandomness.cpp`` in meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opdispatch.arrays.level_array import LevelArray
from opdispatch.dispatch.operator_state import NONDETERMINISTIC
from opdispatch.errors import TransformError
from opdispatch.functorch.batch_loop import call_for_each
from opdispatch.functorch.batched_tensor import BatchedArray, unwrap, unwrap_all
from opdispatch.functorch.dynamic_layer import (
    TOP,
    DynamicLayer,
    Lowered,
    bits_off_but_for,
    call_stack,
    comes_first,
)
from opdispatch.functorch.tensor_wrapper import unwrap_dead
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_BATCHED = bits_of_key(DispatchKey.FuncTorchBatched)
_OFF = bits_off_but_for(_BATCHED)
_RULE = DispatchKeySet.of(DispatchKey.FuncTorchBatched)
_ON = DispatchKeySet.of(DispatchKey.FuncTorchVmapMode).bits

RANDOMNESS = ("error", "different", "same")


class VmapInfo(NamedTuple):
    """What a batching rule is told of the batch."""

    batch_size: int
    randomness: str


class VmapLayer(DynamicLayer):
    """A batch."""

    name = "vmap"

    def __init__(self, level: int, batch_size: int, randomness: str) -> None:
        super().__init__(level)
        self.info = VmapInfo(batch_size, randomness)

    def take(self, op: OperatorHandle, stack: list[Any]) -> bool:
        """Call the batching rule, or the level below if no tensor is of this batch.

        Random operators, and those that are another one within ``vmap``, are left to ``process``.
        """
        if op.asks_vmap_mode or comes_first(LOCAL_STATE.get()):
            return False
        is_batched = False
        for place, value in enumerate(stack):
            if type(value) is Tensor:
                array = value.array
                if type(array) is BatchedArray and array.layer is self:
                    is_batched = True
                elif isinstance(array, LevelArray):
                    stack[place] = value = unwrap_dead(value)
                    is_batched = is_batched or unwrap(value, self)[1] == 0
            elif type(value) is list:
                stack[place] = value = list(map(unwrap_dead, value))
                is_batched = is_batched or any(unwrap(each, self)[1] == 0 for each in value)
        if is_batched:
            op.redispatch_boxed(_RULE, stack)
        else:
            frame = TOP.get()
            assert frame is not None, "a level that is asked is on the stack"
            with Lowered(frame):
                call_stack(op, stack)
        return True

    def process(self, op: OperatorHandle, stack: list[Any]) -> None:
        """Call it with FuncTorchBatched switched on: for tensors of a batch, that is next."""
        if NONDETERMINISTIC in op.tags and not (
            op.has_kernel_for_dispatch_key(DispatchKey.FuncTorchVmapMode)
            or op.has_kernel_for_dispatch_key(DispatchKey.FuncTorchBatched)
        ):
            self._process_random(op, stack)
        else:
            self.call_with(_ON, _OFF, op, stack)

    def send_to_next(self, op: OperatorHandle, stack: list[Any]) -> None:
        """Call it: no tensor of this batch is among the arguments any more."""
        call_stack(op, stack)

    def _process_random(self, op: OperatorHandle, stack: list[Any]) -> None:
        """A random operator without a rule of its own: as ``randomness`` says."""
        randomness, facts = self.info.randomness, {"operator": str(op.name)}
        frame = TOP.get()
        assert frame is not None, "a level that is asked is on the stack"
        values, dims, found = unwrap_all(stack, self)
        if randomness == "error":
            raise TransformError(
                f"{op.name} is random, and vmap was not told whether all samples are to have the "
                "same random numbers",
                hint='use vmap(..., randomness="different") or "same"',
                **facts,
            )
        if randomness == "same" and found:
            raise TransformError(
                f"{op.name} cannot have the same random numbers for all samples, as vmap was told: "
                "its arguments are another tensor for each",
                hint='use randomness="different", or draw the numbers from unbatched arguments',
                **facts,
            )
        with Lowered(frame):
            if randomness == "same":
                op.call_boxed(stack)
            else:
                results = call_for_each(op, self.info.batch_size, values, dims, stack, always=True)
        if randomness == "different":
            stack[:] = [each.wrapped(self) for each in results]

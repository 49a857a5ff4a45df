"""The level of ``vmap``: dispatch calls with batched tensors to batching rules.

Mirrors ``functorch/VmapInterpreter.cpp``, and ``BatchRulesRandomness.cpp`` in meaning.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.arrays.level_array import LevelArray
from opdispatch.dispatch.operator_state import NONDETERMINISTIC
from opdispatch.errors import TransformError
from opdispatch.functorch.batch_loop import call_for_each
from opdispatch.functorch.batched_tensor import BatchedArray
from opdispatch.functorch.batching_rule import BatchedCall, VmapInfo, run_rule
from opdispatch.functorch.dynamic_layer import (
    TOP,
    DynamicLayer,
    Frame,
    Lowered,
    bits_off_but_for,
)
from opdispatch.functorch.operator_rules import NOT_TAKEN, OperatorRules
from opdispatch.functorch.tensor_wrapper import WrappedArray, unwrap_dead
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE, LocalState
from opdispatch.tensors.tensor import Tensor

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_BATCHED = bits_of_key(DispatchKey.FuncTorchBatched)
_OFF = bits_off_but_for(_BATCHED)
_ON = DispatchKeySet.of(DispatchKey.FuncTorchVmapMode).bits

RANDOMNESS = ("error", "different", "same")


class VmapLayer(DynamicLayer):
    """A level of one batch."""

    name = "vmap"

    def __init__(self, level: int, batch_size: int, randomness: str) -> None:
        super().__init__(level)
        self.info = VmapInfo(batch_size, randomness)

    def unwrapped(self, args: Sequence[Any]) -> tuple[list[Any], list[Any], bool]:
        """Unwrap the arguments of a call for the level below.

        Returns the values, their hidden dimensions (None for unbatched values, a list for a list),
        and whether any of them is batched."""
        values: list[Any] = []
        dims: list[Any] = []
        found = False
        for value in args:
            dim: Any = None
            if type(value) is Tensor:
                array = value.array
                if isinstance(array, WrappedArray) and not array.layer.is_alive:
                    value = unwrap_dead(value)
                    array = getattr(value, "array", None)
                if type(array) is BatchedArray and array.layer is self:
                    value, dim, found = array.value, 0, True
            elif type(value) is list:
                value, dim, is_in_list = self.unwrapped(value)
                found = found or is_in_list
            values.append(value)
            dims.append(dim)
        return values, dims, found

    def take(
        self, rules: OperatorRules, frame: Frame, below: LocalState, args: Sequence[Any]
    ) -> Any:
        """Call the batching rule, or the level below if no tensor is of this batch.

        Random operators, operators that are replaced under ``vmap``, and operators without a
        batching rule are left to ``process``.
        """
        if rules.asks_vmap_mode:
            return NOT_TAKEN
        values: list[Any] = []
        dims: list[Any] = []
        found = False
        for value in args:  # fast path: usually no argument is batched at this level
            if type(value) is list or (
                type(value) is Tensor
                and isinstance(array := value.array, LevelArray)
                and (array.layer is self or not array.layer.is_alive)
            ):
                values, dims, found = self.unwrapped(args)
                break
        rule = rules.batching_rule if found else None
        if found and rule is None:
            return NOT_TAKEN
        local, top = LOCAL_STATE.set(below), TOP.set(frame.below)
        try:
            if rule is not None:
                return run_rule(rule, BatchedCall(rules, self.info, values, dims), self, args)
            below_it = values or args
            return rules.call(below_it) if rules.has_keywords else rules.op(*below_it)
        finally:
            TOP.reset(top)
            LOCAL_STATE.reset(local)

    def process(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call the operator with FuncTorchBatched enabled, the next key for batched tensors."""
        op = rules.op
        if NONDETERMINISTIC in op.tags and not (
            op.has_kernel_for_dispatch_key(DispatchKey.FuncTorchVmapMode)
            or op.has_kernel_for_dispatch_key(DispatchKey.FuncTorchBatched)
        ):
            stack = [*args]
            self._process_random(op, stack)
            return rules.signature.unbox_returns(stack)
        return self.call_with(_ON, _OFF, rules, args)

    def send_to_next(self, rules: OperatorRules, args: Sequence[Any]) -> Any:
        """Call the operator; its arguments contain no tensor of this batch any more."""
        return rules.call(args)

    def _process_random(self, op: OperatorHandle, stack: list[Any]) -> None:
        """Run a random operator that has no batching rule, according to ``randomness``."""
        randomness, facts = self.info.randomness, {"operator": str(op.name)}
        frame = TOP.get()
        assert frame is not None, "a level that is asked is on the stack"
        values, dims, found = self.unwrapped(stack)
        if randomness == "error":
            raise TransformError(
                f'{op.name} is random, and vmap has randomness="error"',
                hint='use randomness="different" or "same"',
                **facts,
            )
        if randomness == "same" and found:
            raise TransformError(
                f"{op.name} cannot have the same random numbers for all samples, as vmap requires: "
                "its arguments are batched",
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

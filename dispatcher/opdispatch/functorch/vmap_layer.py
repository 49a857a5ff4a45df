"""The level of ``vmap``: calls with batched tensors are served by batching rules.

Mirrors ``functorch/VmapInterpreter.cpp``, and ``BatchRulesRandomness.cpp`` in meaning.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from opdispatch.dispatch_key import DispatchKey
from opdispatch.dispatch_key_set import DispatchKeySet, bits_of_key
from opdispatch.errors import TransformError
from opdispatch.functorch.batch_loop import call_for_each
from opdispatch.functorch.batched_tensor import unwrap_all
from opdispatch.functorch.dynamic_layer import (
    TOP,
    DynamicLayer,
    Lowered,
    bits_off_but_for,
)

if TYPE_CHECKING:
    from opdispatch.operator_handle import OperatorHandle

_BATCHED = bits_of_key(DispatchKey.FuncTorchBatched)
_OFF = bits_off_but_for(_BATCHED)
_ON = DispatchKeySet.of(DispatchKey.FuncTorchVmapMode).bits

NONDETERMINISTIC = "nondeterministic_seeded"
"""The tag of operators whose results are random."""
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

    def process(self, op: OperatorHandle, stack: list[Any]) -> None:
        """Calls it with FuncTorchBatched switched on: for tensors of a batch, that is next."""
        if NONDETERMINISTIC in op.tags and not (
            op.has_kernel_for_dispatch_key(DispatchKey.FuncTorchVmapMode)
            or op.has_kernel_for_dispatch_key(DispatchKey.FuncTorchBatched)
        ):
            self._process_random(op, stack)
        else:
            self.call_with(_ON, _OFF, op, stack)

    def send_to_next(self, op: OperatorHandle, stack: list[Any]) -> None:
        """Calls it: no tensor of this batch is among the arguments any more."""
        op.call_boxed(stack)

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

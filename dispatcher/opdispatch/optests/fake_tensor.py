"""Checks the results of an operator for fake tensors against those for real ones.

Mirrors ``torch/testing/_internal/optests/fake_tensor.py`` and ``CrossRefFakeMode``.
"""

from __future__ import annotations

from typing import Any

from opdispatch.errors import NoKernelError, OpCheckError
from opdispatch.keys.dispatch_key import BackendComponent, DispatchKey, to_runtime_key
from opdispatch.modes.fake_tensor import FakeTensorMode
from opdispatch.optests.sample import Sample, describe, off_leaf, tensors_in
from opdispatch.tensors.tensor import Tensor
from opdispatch.tracing.pytree import leaves

_META = to_runtime_key(DispatchKey.Dense, BackendComponent.Meta)

NOT_FAKED = frozenset({"dynamic_output_shape", "inplace_view", "data_dependent_output"})
"""Tags of operators whose results depend on elements, and cannot be predicted from shapes."""


def check_fake_tensor(sample: Sample) -> None:
    """Check that the operator returns matching results for fake and for real tensors.

    Compares the number of results, their shapes, dtypes and devices, whether they require
    gradients, and which of them are arguments. Strides are not compared, since fake tensors have
    none. Only dense tensors have fake counterparts. Raises OpCheckError, and the operator's own
    errors for either kind of tensor.
    """
    op = sample.op
    if not NOT_FAKED.isdisjoint(op.tags) or not sample.is_dense:
        return
    mode = FakeTensorMode()
    with mode:
        args, kwargs = sample.copies(lambda each: off_leaf(mode.from_tensor(each)))
        faked = call_with_fakes(sample, args, kwargs)
    where = _origins(faked, (args, kwargs))
    args, kwargs = sample.copies(off_leaf)
    with sample.same_random_numbers():
        real = op(*args, **kwargs)
    for place, (found, wanted) in enumerate(_paired(sample, faked, real)):
        compare_facts(found, wanted, f"result {place} of {op.name}")
    if where != _origins(real, (args, kwargs)):
        raise OpCheckError(
            f"{op.name} returns an argument itself for tensors with elements, or for fake ones, "
            "and not for both",
            operator=str(op.name),
        )


def compare_facts(faked: Any, real: Any, what: str) -> None:
    """Raise OpCheckError unless the fake tensor matches the real one, or neither is a tensor."""
    is_tensor = bool(tensors_in([real]))
    if bool(tensors_in([faked])) is not is_tensor:
        raise OpCheckError(f"{what} is {faked!r} for fake tensors, and {real!r} otherwise")
    if not is_tensor:
        return
    if describe(faked) != describe(real):
        raise OpCheckError(
            f"{what} is {describe(faked)} for fake tensors, and {describe(real)} otherwise",
            hint="check the kernel registered by register_fake",
        )
    both = isinstance(faked, Tensor) and isinstance(real, Tensor)
    if both and faked.requires_grad is not real.requires_grad:
        does, does_not = ("fake", "real") if faked.requires_grad else ("real", "fake")
        raise OpCheckError(
            f"{what} requires gradients for {does} tensors, and not for {does_not} ones",
            hint="a derivative is registered with register_autograd, or for the key Autograd",
        )


def call_with_fakes(sample: Sample, args: Any, kwargs: Any) -> Any:
    """Call the operator with fake tensors.

    Raises the operator's errors, or OpCheckError if a kernel that cannot handle fake tensors ran.
    """
    op = sample.op
    try:
        return op(*args, **kwargs)
    except Exception as error:
        if isinstance(error, NoKernelError) or op.has_kernel_for_dispatch_key(_META):
            raise
        raise OpCheckError(
            f"{op.name} has no kernel for Meta, and the one that serves it raised "
            f"{type(error).__name__} for fake tensors: {error}",
            hint=f"register one with @opdispatch.register_fake({str(op.name)!r})",
            operator=str(op.name),
        ) from error


def _paired(sample: Sample, faked: Any, real: Any) -> list[tuple[Any, Any]]:
    found, wanted = list(leaves(faked)), list(leaves(real))
    if len(found) != len(wanted):
        raise OpCheckError(
            f"{sample.op.name} returns {len(found)} values for fake tensors, and {len(wanted)} "
            "otherwise",
            operator=str(sample.op.name),
        )
    return list(zip(found, wanted, strict=True))


def _origins(results: Any, arguments: Any) -> list[int | None]:
    """Return, for each result, the index of the argument it is identical to; None if it is new."""
    places = {id(each): place for place, each in enumerate(tensors_in(arguments))}
    return [places.get(id(leaf)) for leaf in leaves(results)]

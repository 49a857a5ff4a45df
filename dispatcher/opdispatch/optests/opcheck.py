"""``opcheck``: tries an operator, and compares what it does with what is registered for it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import ArgumentError, OpCheckError
from opdispatch.library.custom_operator import CustomOpDef
from opdispatch.library.ops import OpOverloadPacket
from opdispatch.optests.aot_autograd import check_aot_dispatch
from opdispatch.optests.autograd_registration import check_autograd_registration
from opdispatch.optests.fake_tensor import check_fake_tensor
from opdispatch.optests.sample import Sample, Tolerance
from opdispatch.optests.schema_check import check_schema

ALL_TEST_UTILS: Mapping[str, Callable[[Sample], None]] = {
    "test_schema": check_schema,
    "test_autograd_registration": check_autograd_registration,
    "test_faketensor": check_fake_tensor,
    "test_aot_dispatch_static": check_aot_dispatch,
    "test_aot_dispatch_dynamic": check_aot_dispatch,
}
DEFAULT_TEST_UTILS = (
    "test_schema",
    "test_autograd_registration",
    "test_faketensor",
    "test_aot_dispatch_dynamic",
)


def opcheck(
    op: OperatorHandle | OpOverloadPacket | CustomOpDef[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] = DEFAULT_TEST_UTILS,
    raise_exception: bool = True,
    rtol: float | None = None,
    atol: float | None = None,
) -> dict[str, Any]:
    """Check whether an operator, called with these arguments, does what its registrations say.

    ``test_schema``: it writes to, returns and shares memory with just what its schema says.
    ``test_autograd_registration``: its derivative is registered for Autograd, and not for the key
    of a backend. ``test_faketensor``: for tensors without elements, it returns what it does with
    elements, in shapes, dtypes and devices. ``test_aot_dispatch_dynamic``: it does the same when it
    is functionalized and in a traced graph, forwards and backwards, and can go backwards on fake
    tensors; ``test_aot_dispatch_static`` is another name for it. ``test_utils`` names those to be
    made, and "ALL" is all; arguments without elements pass each.

    The arguments are copied, so that none changes. Give several samples, some with tensors that
    require gradients if the operator has a derivative; whether that is right is what ``gradcheck``
    finds out. Returns "SUCCESS" for each test; the first that fails is an OpCheckError, whose cause
    is what was found. Without ``raise_exception``, the dict has that in its place. Raises
    ArgumentError for another ``op``, for several overloads, for an unknown test, and for one of
    ``rtol`` and ``atol`` without the other. As ``torch.library.opcheck``.
    """
    if (rtol is None) is not (atol is None):
        raise ArgumentError("opcheck takes rtol and atol together, and was given one of them")
    handle = _only_overload(op)
    sample = Sample(handle, args, kwargs or {}, Tolerance(rtol, atol))
    results: dict[str, Any] = {}
    for name in _names_of(test_utils):
        try:
            if not sample.is_abstract:
                ALL_TEST_UTILS[name](sample)
            results[name] = "SUCCESS"
        except Exception as error:
            if raise_exception:
                what = "" if isinstance(error, OpCheckError) else f" with {type(error).__name__}"
                raise OpCheckError(
                    f"opcheck of {handle.name}: {name} failed{what}: {error}",
                    operator=str(handle.name),
                    test=name,
                ) from error
            results[name] = error
    return results


def _names_of(test_utils: str | Sequence[str]) -> Sequence[str]:
    if test_utils == "ALL":
        return tuple(ALL_TEST_UTILS)
    names = (test_utils,) if isinstance(test_utils, str) else tuple(test_utils)
    for name in names:
        if name not in ALL_TEST_UTILS:
            raise ArgumentError(
                f"opcheck knows no test {name!r}", hint=f"there are {', '.join(ALL_TEST_UTILS)}"
            )
    return names


def _only_overload(op: Any) -> OperatorHandle:
    if isinstance(op, CustomOpDef):
        op = op.overload
    if isinstance(op, OpOverloadPacket):
        overloads = op.overloads()
        if len(overloads) != 1:
            raise ArgumentError(
                f"opcheck takes one overload, and {op!r} has {', '.join(overloads) or 'none'}"
            )
        op = getattr(op, overloads[0])
    if not isinstance(op, OperatorHandle):
        raise ArgumentError(
            f"opcheck takes an operator, such as ops.image.sobel.default, not {op!r}"
        )
    return op

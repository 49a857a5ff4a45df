"""``opcheck``: calls an operator and compares its behavior with its registrations."""

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
    """Test whether an operator, called with ``args`` and ``kwargs``, is registered correctly.

    ``test_utils`` names the tests to run, or is "ALL":

    - ``test_schema``: mutation and aliasing are exactly those that the schema declares.
    - ``test_autograd_registration``: the derivative is registered for an Autograd key, and not
      implemented in the kernel of a backend.
    - ``test_faketensor``: results for fake tensors have the shapes, dtypes and devices of those for
      real tensors.
    - ``test_aot_dispatch_dynamic``: results and gradients are the same under ``functionalize`` and
      in a traced graph, and the backward pass works on fake tensors.
      ``test_aot_dispatch_static`` is an alias.

    Arguments without elements pass every test. The arguments are copied and not changed. Test
    several samples, including tensors that require gradients if the operator has a derivative; use
    ``gradcheck`` to verify that the derivative is correct. Returns a dict with "SUCCESS" for each
    test. The first failure raises OpCheckError with the original error as its cause; with
    ``raise_exception=False``, the dict has the error instead. Raises ArgumentError for an invalid
    ``op``, one with several overloads, an unknown test, and if only one of ``rtol`` and ``atol`` is
    given. As ``torch.library.opcheck``.
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

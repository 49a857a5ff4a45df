"""``custom_op``: an operator out of one function."""

import numpy as np
import pytest

import opdispatch
from opdispatch import (
    AutogradError,
    DispatchKeyError,
    DuplicateDefinitionError,
    Library,
    NoKernelError,
    OperatorNotFoundError,
    ReturnError,
    SchemaError,
    Tensor,
    custom_op,
    default_dispatcher,
    opcheck,
    ops,
    vmap,
)
from opdispatch import array_api as xp

X = np.arange(3.0)


@pytest.fixture
def scale():
    @custom_op("custom::scale", mutates_args=())
    def scale(x: Tensor, by: float = 2.0) -> Tensor:
        return x * by

    yield scale
    scale.close()


def test_a_function_is_an_operator(scale):
    np.testing.assert_array_equal(scale(X), X * 2)
    np.testing.assert_array_equal(ops.custom.scale(X, by=3), X * 3)
    assert repr(scale) == "<CustomOpDef custom::scale(Tensor x, float by=2.) -> Tensor>"
    scale.close()
    scale.close()
    with pytest.raises(OperatorNotFoundError):
        scale(X)


def test_a_definition_replaces_the_one_before(scale):
    again = custom_op(
        "custom::scale", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor"
    )
    np.testing.assert_array_equal(again(X), X + 1)
    np.testing.assert_array_equal(scale(X), X + 1)  # of the same name
    scale.close()
    np.testing.assert_array_equal(again(X), X + 1)
    again.close()
    with pytest.raises(OperatorNotFoundError):
        again(X)


def test_errors_say_where_it_was_defined(scale):
    with pytest.raises(
        DuplicateDefinitionError, match=r"at .*test_custom_operator.py:\d+; the sec"
    ):
        Library("custom", "FRAGMENT").define("scale(Tensor x) -> Tensor")


def test_a_definition_that_fails_leaves_the_one_before(scale):
    with pytest.raises(SchemaError, match="mutates_args of custom::scale has"):
        custom_op(
            "custom::scale", lambda x: None, mutates_args=("y",), schema="(Tensor(a!) x) -> ()"
        )
    with pytest.raises(DispatchKeyError):
        custom_op(
            "custom::scale", lambda x: None, mutates_args=(), schema="() -> ()", device_types="gpu"
        )
    np.testing.assert_array_equal(scale(X), X * 2)
    scale.register_kernel("cpu", lambda x, by: x - by)
    np.testing.assert_array_equal(scale(X), X - 2)


def test_somebody_elses_operator_is_not_replaced():
    with Library("custom", "DEF") as library:
        library.define("scale(Tensor x) -> Tensor")
        with pytest.raises(DuplicateDefinitionError):
            custom_op("custom::scale", lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")


def test_within_a_transaction_nothing_is_replaced(scale):
    with pytest.raises(DuplicateDefinitionError), default_dispatcher().transaction():
        custom_op("custom::scale", lambda x: x + 1, mutates_args=(), schema="(Tensor x) -> Tensor")
    np.testing.assert_array_equal(scale(X), X * 2)


def test_kernels_for_types_of_devices(scale):
    @scale.register_kernel("cpu")
    def _(x, by):
        return x * by + 100

    np.testing.assert_array_equal(scale(X), X * 2 + 100)
    with scale.set_kernel_enabled("cpu", enabled=False):
        np.testing.assert_array_equal(scale(X), X * 2)
        with scale.set_kernel_enabled("cpu"):
            np.testing.assert_array_equal(scale(X), X * 2 + 100)
        np.testing.assert_array_equal(scale(X), X * 2)
    np.testing.assert_array_equal(scale(X), X * 2 + 100)
    scale.register_kernel(["cpu", "cuda"], lambda x, by: x - by)
    np.testing.assert_array_equal(scale(X), X - 2)


def test_a_kernel_for_one_type_of_device_is_for_no_other():
    only = custom_op(
        "custom::only",
        lambda x: x + 1,
        mutates_args=(),
        schema="(Tensor x) -> Tensor",
        device_types="cuda",
    )
    with pytest.raises(NoKernelError):
        only(X)
    only.close()


@pytest.mark.parametrize(
    ("schema", "kernel"),
    [
        ("(Tensor x) -> Tensor", lambda x: x),
        ("(Tensor x) -> Tensor", lambda x: x[1:]),
        ("(Tensor[] x) -> Tensor[]", lambda x: [x[0] + 1, x[1]]),
        ("(*, Tensor x) -> (Tensor, Tensor)", lambda *, x: (x + 1, x)),
    ],
)
@pytest.mark.parametrize("wrap", [np.asarray, Tensor])
def test_what_it_returns_is_no_argument(schema, kernel, wrap):
    op = custom_op("custom::view", kernel, mutates_args=(), schema=schema)
    value = [wrap(X), wrap(X + 1)] if "[]" in schema else wrap(X)
    with pytest.raises(ReturnError, match="custom::view returned an argument, or what shares its"):
        op(x=value)
    op.close()


def test_what_the_schema_says_is_an_argument_may_be_returned():
    op = custom_op(
        "custom::same_", lambda x: x, mutates_args="x", schema="(Tensor(a!) x) -> Tensor(a!)"
    )
    x = X.copy()
    assert op(x) is x
    op.close()


def test_an_operator_that_writes():
    @custom_op("custom::add_one_", mutates_args={"x"})
    def add_one_(x: Tensor) -> None:
        x += 1

    x = Tensor(X.copy())
    assert add_one_(x) is None
    np.testing.assert_array_equal(x.array, X + 1)
    assert add_one_(x.to("meta")) is None  # there is nothing to write to
    add_one_.close()


def test_derivative_batches_casts_and_shapes_are_registered_by_its_methods(scale):
    with pytest.raises(AutogradError):
        xp.sum(scale(Tensor(X, requires_grad=True))).backward()

    scale.register_autograd(
        lambda ctx, grad: (grad * ctx.by, None),
        setup_context=lambda ctx, inputs, output: setattr(ctx, "by", inputs[1]),
    )
    x = Tensor(X, requires_grad=True)
    xp.sum(scale(x, 5.0)).backward()
    np.testing.assert_array_equal(x.grad.array, np.full(3, 5.0))

    @scale.register_fake
    def _(x, by):
        return xp.empty_like(x)

    assert scale(Tensor(X).to("meta")).shape == (3,)

    seen = []

    @scale.register_vmap
    def _(info, in_dims, x, by):
        seen.append((info.batch_size, in_dims))
        return x * by, in_dims[0]

    np.testing.assert_array_equal(vmap(scale)(Tensor(X)).array, X * 2)
    assert seen == [(3, (0, None))]

    scale.register_autocast("cpu", np.float16)
    with opdispatch.autocast("cpu"):
        assert scale(Tensor(np.float32(X))).dtype == np.float16


@pytest.mark.parametrize("name", ["scale", "custom::scale.out", "a::b::c", ""])
def test_a_name_is_a_namespace_and_a_name(name):
    with pytest.raises(SchemaError):
        custom_op(name, lambda x: x, mutates_args=(), schema="(Tensor x) -> Tensor")


def test_a_function_without_annotations_needs_a_schema():
    with pytest.raises(SchemaError, match="annotation"):
        custom_op("custom::bare", lambda x: x, mutates_args=())


def test_one_that_returns_what_it_writes_to():
    def add_(x: Tensor, y: Tensor) -> Tensor:
        x.array[:] += y.array
        return x

    def halves(x: Tensor, *, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
        low.array[:], high.array[:] = np.split(x.array, 2)
        return low, high

    first = custom_op("custom::add_", add_, mutates_args=["x"], tags="inplace")
    second = custom_op("custom::halves", halves, mutates_args=["low", "high"], tags=["out"])
    try:
        x = Tensor(np.ones(2))
        assert first(x, x) is x
        np.testing.assert_array_equal(x.array, [2.0, 2.0])
        low, high = Tensor(np.zeros(1)), Tensor(np.zeros(1))
        assert second(x, low=low, high=high) == (low, high)
        on_meta = x.to("meta")
        assert first(on_meta, on_meta) is on_meta
        assert second(on_meta, low=on_meta, high=low.to("meta"))[0] is on_meta
        assert set(opcheck(first, (x, x)).values()) == {"SUCCESS"}
        assert set(opcheck(second, (x,), {"low": low, "high": high}).values()) == {"SUCCESS"}
    finally:
        first.close()
        second.close()


def test_one_that_returns_a_tuple_of_one():
    @custom_op("custom::single", mutates_args=())
    def single(x: Tensor) -> tuple[Tensor]:
        return (Tensor(x.array + 1),)

    try:
        (result,) = single(Tensor(np.ones(1)))
        np.testing.assert_array_equal(result.array, [2.0])
    finally:
        single.close()

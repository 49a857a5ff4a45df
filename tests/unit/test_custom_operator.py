"""``custom_op``: an operator out of one function."""

import numpy as np
import pytest

import opdispatch
from opdispatch import (
    AutogradError,
    Device,
    DispatchKeyError,
    DuplicateDefinitionError,
    Library,
    MetaArray,
    NoKernelError,
    OperatorNotFoundError,
    RegistrationError,
    ReturnError,
    SchemaError,
    Tensor,
    custom_op,
    default_dispatcher,
    no_grad,
    opcheck,
    ops,
    register_autograd,
    register_fake,
    register_kernel,
    register_torch_dispatch,
    register_vmap,
    vmap,
)
from opdispatch import array_api as xp
from opdispatch.fake_tensor import FakeTensorMode

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


def test_operator_of_another_library_is_not_replaced():
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
def test_custom_op_refuses_a_result_that_aliases_an_argument(schema, kernel, wrap):
    op = custom_op("custom::view", kernel, mutates_args=(), schema=schema)
    value = [wrap(X), wrap(X + 1)] if "[]" in schema else wrap(X)
    with pytest.raises(ReturnError, match="custom::view returned an argument, or what shares its"):
        op(x=value)
    op.close()


def test_custom_op_may_return_an_argument_declared_by_its_schema():
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


def test_without_elements_it_is_what_its_fake_kernel_says(scale):
    on_meta = Tensor(X).to("meta")
    with pytest.raises(
        NoKernelError, match=r"custom::scale has no fake.*@opdispatch.register_fake"
    ):
        scale(on_meta)
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(X)
        with pytest.raises(NoKernelError, match=r"custom::scale.*@opdispatch.register_fake"):
            scale(fake)
        register_fake(scale, lambda x, by: xp.empty_like(x))
        assert (scale(fake).shape, scale(fake).device) == ((3,), "cpu")
    assert scale(on_meta).shape == (3,)
    scale.register_kernel("meta", lambda x, by: Tensor(MetaArray((9,), "float64")))
    scale.register_fake(lambda x, by: xp.empty_like(x))
    assert scale(on_meta).shape == (9,)


def test_a_kernel_for_several_types_of_devices_is_each_ones_own(scale):
    scale.register_kernel(["cpu", "meta"], lambda x, by: Tensor(x.array + 1))
    scale.register_kernel("meta", lambda x, by: Tensor(MetaArray((9,), "float64")))
    np.testing.assert_array_equal(scale(Tensor(X)).array, X + 1)


def test_without_tensors_it_is_called_for_its_device():
    @custom_op("custom::filled", mutates_args=(), device_types="cpu")
    def filled(n: int, *, device: Device) -> Tensor:
        return Tensor(np.zeros(n))

    assert str(filled.overload.schema) == "custom::filled(SymInt n, *, Device device) -> Tensor"
    assert filled(2, device="cpu").shape == (2,)
    message = r"custom::filled has no kernel for the device type 'cuda'; it has one for cpu .*reg"
    with pytest.raises(NoKernelError, match=message):
        filled(2, device="cuda:1")
    filled.register_kernel("cuda", lambda n, *, device: Tensor(np.ones(n + 1)))
    assert filled(2, device="cuda").shape == (3,)
    with FakeTensorMode(), pytest.raises(NoKernelError, match="register_fake"):
        filled(2, device="cuda")
    filled.close()
    with pytest.raises(SchemaError, match=r"takes no tensors.*`device: Device`"):
        custom_op(
            "custom::none",
            lambda n: None,
            mutates_args=(),
            schema="(int n) -> Tensor",
            device_types="cpu",
        )
    assert "none" not in dir(ops.custom)


def test_an_overload_is_an_operator_of_its_own(scale):
    @custom_op("custom::scale.both", mutates_args=())
    def both(x: Tensor, by: Tensor, and_by: Tensor) -> Tensor:
        return x * by * and_by

    np.testing.assert_array_equal(both(X, X, X), X**3)
    np.testing.assert_array_equal(ops.custom.scale(X, X, X), X**3)
    np.testing.assert_array_equal(ops.custom.scale(X), X * 2)
    assert both.overload is ops.custom.scale.both
    both.close()
    np.testing.assert_array_equal(scale(X), X * 2)


def test_a_leaf_that_it_writes_to_stays_one():
    def add_one_(x: Tensor) -> Tensor:
        x.array[...] += 1
        return x

    op = custom_op("custom::add_one_", add_one_, mutates_args=["x"], tags="inplace")
    x = Tensor(X.copy(), requires_grad=True)
    result = op(x)
    np.testing.assert_array_equal(x.array, X + 1)
    assert (x.is_leaf, x._version, result is x, result.requires_grad) == (True, 1, False, True)
    with pytest.raises(AutogradError, match="custom::add_one_ has no derivative"):
        xp.sum(result).backward()
    part = x[1:]
    assert op(part) is not part
    np.testing.assert_array_equal(x.array, X + np.array([1, 2, 2]))
    op.close()


def test_an_operator_with_out_arguments_has_no_derivative():
    def double(x: Tensor, *, out: Tensor) -> Tensor:
        out.array[...] = x.array * 2
        return out

    op = custom_op("custom::double", double, mutates_args=["out"], tags="out")
    x, out = Tensor(X, requires_grad=True), Tensor(np.zeros(3))
    for given in ({"x": x, "out": out}, {"x": out, "out": x}):
        with pytest.raises(AutogradError, match="writes its results to keyword-only arguments"):
            op(**given)
    with no_grad():
        assert op(x, out=out) is out
    with pytest.raises(RegistrationError, match="it writes to its arguments"):
        register_autograd(op, lambda ctx, grad: grad)
    with pytest.warns(UserWarning, match="has the tag 'out', and needs no fake kernel"):
        register_fake(op, lambda x, *, out: out)
    op.close()


@pytest.mark.parametrize(
    ("tags", "schema", "mutated", "message"),
    [
        ("inplace", "(Tensor(a!) x, Tensor y) -> Tensor(a!)", ["x"], "than its first argument"),
        ("out", "(Tensor y, *, Tensor(a!) x) -> Tensor(a!)", ["x"], "that it writes to, x"),
    ],
)
def test_a_tag_says_what_it_returns(tags, schema, mutated, message):
    op = custom_op(
        "custom::odd", lambda *args, **kw: args[-1], mutates_args=mutated, schema=schema, tags=tags
    )
    x, y = Tensor(X.copy()), Tensor(X + 1)
    with pytest.raises(ReturnError, match=message):
        op(y, x=x) if tags == "out" else op(x, y)
    op.close()


def test_two_results_that_share_memory_are_refused():
    op = custom_op(
        "custom::twice",
        lambda x: (y := x + 1, y),
        mutates_args=(),
        schema="(Tensor x) -> (Tensor, Tensor)",
    )
    with pytest.raises(ReturnError, match="returned two values that share memory"):
        op(X)
    op.close()


def test_registrations_take_the_definition_its_name_and_the_operator(scale):
    for number, op in enumerate([scale, "custom::scale", ops.custom.scale.default]):
        register_kernel(op, "cpu", lambda x, by, n=number: x * 0 + n)
        assert scale(X)[0] == number
    kernel = register_kernel(scale, "cpu")(lambda x, by: x * 1)
    np.testing.assert_array_equal(kernel(X, 2), X)
    with scale.set_kernel_enabled("cpu", enabled=False):
        np.testing.assert_array_equal(scale(X), X * 2)
    with Library("custom", "FRAGMENT") as library:
        register_kernel(scale, ["cpu"], lambda x, by: x + 5, lib=library)
        np.testing.assert_array_equal(scale(X), X + 5)
    np.testing.assert_array_equal(scale(X), X)
    for register in (register_fake, register_torch_dispatch, register_vmap):
        with pytest.raises(
            SchemaError, match="expected an operator, its name or the result of custom_op"
        ):
            register(5, *((Tensor,) if register is register_torch_dispatch else ()), len)


def test_switching_a_kernel_that_is_not_there_is_logged(scale, caplog):
    with scale.set_kernel_enabled("cuda", enabled=False):
        assert "custom::scale has no kernel for cuda" in caplog.text
    scale.register_kernel("cpu", lambda x, by: x)
    with scale.set_kernel_enabled("cpu"):
        assert "custom::scale for cpu is on already" in caplog.text
    with scale.set_kernel_enabled("cpu", enabled=False), scale.set_kernel_enabled("cpu", False):
        assert "custom::scale for cpu is off already" in caplog.text


@pytest.mark.parametrize("name", ["scale", "a::b::c", ""])
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

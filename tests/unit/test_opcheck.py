"""``opcheck``: what is wrong with an operator of one's own is found, and named."""

import re
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from opdispatch import (
    ArgumentError,
    AutogradError,
    Library,
    MetaArray,
    NoKernelError,
    OpCheckError,
    Tensor,
    custom_op,
    opcheck,
    ops,
)
from opdispatch import array_api as xp
from opdispatch.autograd import Function

ALL = ("test_schema", "test_autograd_registration", "test_faketensor", "test_aot_dispatch_dynamic")
X = Tensor(np.arange(3.0))


def requiring_grad():
    return Tensor(np.arange(3.0), requires_grad=True)


def copied(x):
    return Tensor(np.array(x.array))


@pytest.fixture
def define():
    """Define an operator with a kernel, and if it is given one, a kernel for fake tensors."""
    with Library("checked", "DEF") as lib:

        def define(schema, kernel, fake=xp.empty_like, key="CPU"):
            name = lib.define(f"f{schema}")
            lib.impl(name, kernel, key)
            if fake is not None:
                lib.impl(name, fake, "Meta")
            return ops.checked.f.default

        yield define


def failures_of(op, *args, **kwargs):
    """The tests that fail, with what they found."""
    found = opcheck(op, args, kwargs, raise_exception=False)
    assert tuple(found) == ALL
    return {name: result for name, result in found.items() if result != "SUCCESS"}


def test_correct_operator_passes(define):
    op = define(
        "(Tensor x, *, int by=1) -> Tensor",
        lambda x, *, by: Tensor(x.array * by),
        lambda x, *, by: xp.empty_like(x),
    )
    assert opcheck(op, (X,), {"by": 3}) == dict.fromkeys(ALL, "SUCCESS")
    assert opcheck(ops.checked.f, (X,), test_utils="test_schema") == {"test_schema": "SUCCESS"}
    assert len(opcheck(op, (X,), test_utils="ALL")) == 5


def test_the_arguments_stay_as_they_are(define):
    def kernel(x):
        x.array[:] = 0

    op = define("(Tensor(a!) x) -> ()", kernel, fake=lambda x: None)
    given = Tensor(np.ones(3))
    opcheck(op, (given,))
    np.testing.assert_array_equal(given.array, np.ones(3))


# -- the schema ----------------------------------------------------------------------------------


def writes(x):
    x.array[0] = -1.0
    return copied(x)


def two_views(x):
    made = np.array(x.array)
    return Tensor(made), Tensor(made[1:])


@pytest.mark.parametrize(
    ("schema", "kernel", "what"),
    [
        ("(Tensor x) -> Tensor", writes, "wrote to its argument 'x'"),
        ("(Tensor x) -> Tensor", lambda x: x, "return 0 of checked::f is its argument 'x' itself"),
        ("(Tensor x) -> Tensor", lambda x: Tensor(x.array[1:]), "shares memory with its argument"),
        ("(Tensor x) -> (Tensor, Tensor)", two_views, "returns 0 and 1 of checked::f share memory"),
        ("(Tensor(a!) x) -> Tensor(a!)", copied, "and shares no memory with it"),
        ("(Tensor(a) x) -> Tensor(a)", lambda x: x, "which only operators that write to it may"),
    ],
)
def test_a_schema_that_says_something_else(define, schema, kernel, what):
    op = define(schema, kernel)
    with pytest.raises(OpCheckError, match="test_schema failed: ") as caught:
        opcheck(op, (X,))
    assert what in str(caught.value)
    assert isinstance(caught.value.__cause__, OpCheckError)
    assert caught.value.facts == {"operator": "checked::f", "test": "test_schema"}


def test_lists_of_tensors_are_looked_into(define):
    def kernel(xs):
        xs[1].array[:] = 0
        return copied(xs[0])

    op = define("(Tensor[] xs) -> Tensor", kernel, fake=lambda xs: xp.empty_like(xs[0]))
    found = failures_of(op, [X, X])
    assert list(found) == ["test_schema"]
    assert "wrote to its argument 'xs'" in str(found["test_schema"])


def test_declared_mutation_passes(define):
    def kernel(x, out):
        out.array[:] = x.array
        return out

    op = define("(Tensor x, *, Tensor(a!) out) -> Tensor(a!)", kernel, fake=lambda x, *, out: out)
    assert failures_of(op, X, out=Tensor(np.zeros(3))) == {}


def test_views_of_different_elements_share_no_memory(define):
    def halves(x):
        made = np.array(x.array)
        return Tensor(made[:1]), Tensor(made[1:])

    def fake(x):
        return Tensor(MetaArray((1,), x.dtype)), Tensor(MetaArray((2,), x.dtype))

    assert failures_of(define("(Tensor x) -> (Tensor, Tensor)", halves, fake), X) == {}


def test_a_composite_operator_has_a_schema_too(define):
    op = define("(Tensor x) -> Tensor", lambda x: x[1:], None, "CompositeImplicitAutograd")
    assert list(failures_of(op, requiring_grad())) == ["test_schema"]


# -- gradients -----------------------------------------------------------------------------------


class Doubled(Function):
    @staticmethod
    def forward(ctx, x):
        return Tensor(x.array * 2)

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


@pytest.mark.parametrize("kernel", [Doubled.apply, lambda x: x * 2])
def test_a_derivative_at_the_key_of_a_backend(define, kernel):
    op = define("(Tensor x) -> Tensor", kernel)
    found = failures_of(op, requiring_grad())
    assert "a kernel for a backend that records gradients" in str(
        found["test_autograd_registration"]
    )
    assert isinstance(found["test_aot_dispatch_dynamic"], AutogradError)
    assert failures_of(op, X) == {}  # nothing to record


def test_derivatives_where_they_belong(define):
    op = define("(Tensor x) -> Tensor", lambda x: x * 2, None, "CompositeImplicitAutograd")
    assert failures_of(op, requiring_grad()) == {}


def test_a_derivative_that_reads_elements_cannot_be_run_on_fake_tensors():
    @custom_op("checked_custom::double", mutates_args=())
    def double(x: Tensor) -> Tensor:
        return Tensor(x.array * 2)

    try:
        double.register_fake(xp.empty_like)
        double.register_autograd(lambda ctx, grad: Tensor(np.asarray(grad) * 2))
        assert list(failures_of(double, requiring_grad())) == ["test_aot_dispatch_dynamic"]
        double.register_autograd(lambda ctx, grad: grad * 2)
        assert failures_of(double, requiring_grad()) == {}
    finally:
        double.close()


def test_mutated_argument_may_require_gradients():
    @custom_op("checked_custom::fill", mutates_args={"x"})
    def fill(x: Tensor) -> None:
        x.array[:] = 1

    try:
        assert failures_of(fill, requiring_grad()) == {}
    finally:
        fill.close()


def test_gradients_that_depend_on_how_often_they_were_asked_for(define):
    seen = []

    def kernel(x):
        seen.append(x)
        return Tensor(x.array * len(seen))

    found = failures_of(define("(Tensor x) -> Tensor", kernel), X)
    assert "results of checked::f differ when functionalized, in place 0: elements differ" in str(
        found["test_aot_dispatch_dynamic"]
    )


# -- fake tensors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fake", "what"),
    [
        (lambda x: Tensor(MetaArray((4,), x.dtype)), "float64[4] on cpu for fake tensors"),
        (lambda x: Tensor(MetaArray((3,), np.float32)), "float32[3] on cpu for fake tensors"),
        (lambda x: x, "returns an argument itself"),
    ],
)
def test_a_fake_kernel_that_is_wrong(define, fake, what):
    op = define("(Tensor x) -> Tensor", copied, fake)
    assert what in str(failures_of(op, X)["test_faketensor"])


def test_another_number_of_results(define):
    op = define("(Tensor x) -> Tensor[]", lambda x: [copied(x)] * 2, lambda x: [xp.empty_like(x)])
    assert "returns 1 values for fake tensors, and 2 otherwise" in str(
        failures_of(op, X)["test_faketensor"]
    )


def test_an_operator_without_a_fake_kernel(define):
    op = define("(Tensor x) -> Tensor", copied, None)
    assert isinstance(failures_of(op, X)["test_faketensor"], NoKernelError)


def test_a_kernel_for_all_devices_that_reads_elements():
    @custom_op("checked_custom::total", mutates_args=())
    def total(x: Tensor) -> float:
        return float(np.sum(x.array[:2]))

    try:
        found = failures_of(total, X)
        assert "register one with @opdispatch.register_fake('checked_custom::total')" in str(
            found["test_faketensor"]
        )
    finally:
        total.close()


def test_a_shape_that_depends_on_elements_is_not_foretold():
    with Library("checked", "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor", tags="dynamic_output_shape")
        lib.impl("f", lambda x: Tensor(x.array[x.array > 0]), "CPU")
        assert failures_of(ops.checked.f, X) == {}


# -- arguments -----------------------------------------------------------------------------------


def test_plain_arrays_and_other_layouts(define):
    op = define("(Tensor x) -> Tensor", np.copy)
    assert failures_of(op, np.ones(3)) == {}
    with Library("checked", "IMPL") as lib:
        lib.impl("f", lambda x: x, "SparseCPU")
        found = failures_of(op, Tensor(sparse.coo_array(np.eye(2))))
        assert list(found) == ["test_schema"]
        lib.impl("f", lambda x: Tensor(x.array.copy()), "SparseCPU")
        assert failures_of(op, Tensor(sparse.coo_array(np.eye(2)))) == {}


def test_arguments_without_elements_pass(define):
    assert failures_of(define("(Tensor x) -> Tensor", writes), X.to("meta")) == {}


def test_error_of_the_operator_is_the_failure(define):
    op = define("(Tensor x) -> Tensor", lambda x: 1 / 0)
    assert isinstance(failures_of(op, X)["test_schema"], ZeroDivisionError)
    with pytest.raises(OpCheckError, match="ZeroDivisionError: division by zero"):
        opcheck(op, (X,))


def test_random_numbers_are_the_same_in_each_call(define):
    import opdispatch.random_library  # noqa: F401

    op = define("(Tensor x) -> Tensor", lambda x: ops.random.uniform_(xp.zeros(3), 0.0, 1.0))
    assert failures_of(op, X) == {}


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda op: opcheck("checked::f", (X,)), "not 'checked::f'"),
        (lambda op: opcheck(op, (X,), test_utils="schema"), "no test 'schema'"),
        (lambda op: opcheck(op, (X,), rtol=1e-3), "rtol and atol together"),
    ],
)
def test_calls_that_cannot_be(define, call, what):
    op = define("(Tensor x) -> Tensor", copied)
    with pytest.raises(ArgumentError, match=what):
        call(op)


def test_one_of_several_overloads_must_be_named(define):
    define("(Tensor x) -> Tensor", copied)
    with Library("checked", "FRAGMENT") as lib:
        lib.define("f.by(Tensor x, int by) -> Tensor")
        with pytest.raises(ArgumentError, match="has default, by"):
            opcheck(ops.checked.f, (X,))


def test_results_may_differ_by_as_much_as_is_said(define):
    seen = []

    def kernel(x):
        seen.append(x)
        return Tensor(x.array + 1e-3 * len(seen))

    op = define("(Tensor x) -> Tensor", kernel)
    assert list(failures_of(op, X)) == ["test_aot_dispatch_dynamic"]
    assert opcheck(op, (X,), rtol=0.0, atol=0.1)["test_aot_dispatch_dynamic"] == "SUCCESS"


@pytest.mark.parametrize("name", ["add.Tensor", "matmul", "sum", "copy_", "linalg_svd"])
def test_operators_of_the_library_array_pass(name):
    packet, _, overload = name.partition(".")
    op = getattr(getattr(ops.array, packet), overload or "default")
    x = Tensor(np.array([[2.0, 1.0], [0.5, 3.0]]), requires_grad=name != "copy_")
    others = () if name in ("sum", "linalg_svd") else (copied(x),)
    assert failures_of(op, x, *others) == {}


def test_opcheck_output_is_as_documented(capsys):
    page = Path(__file__).parents[2] / "docs/kernel-libraries.md"
    section = page.read_text(encoding="utf-8").partition("## Checking an operator")[2]
    blocks = re.findall(r"```(\w*)\n(.*?)```", section, re.DOTALL)
    assert [language for language, _ in blocks] == ["python", "python", ""]
    names = {"np": np, "Tensor": Tensor, "custom_op": custom_op}
    try:
        for _, block in blocks[:2]:
            exec(block, names)
        assert capsys.readouterr().out == blocks[2][1]
        for x in names["test_scaled"].pytestmark[0].args[1]:
            names["test_scaled"](x)
    finally:
        names["scaled"].close()
        names["clipped"].close()

"""Where registrations go that name an operator, and the place that they are said to be from."""

import numpy as np
import pytest

from opdispatch import (
    Library,
    custom_op,
    define,
    impl,
    ops,
    register_autocast,
    register_autograd,
    register_fake,
    register_jvp,
    register_kernel,
    register_vmap,
)

REGISTER = {
    "impl": lambda op, lib: impl(op, "cpu", lambda x: x, lib=lib),
    "@impl": lambda op, lib: impl(op, "cpu", lib=lib)(lambda x: x),
    "register_kernel": lambda op, lib: register_kernel(op, "cpu", lambda x: x, lib=lib),
    "@register_kernel": lambda op, lib: register_kernel(op, "cpu", lib=lib)(lambda x: x),
    "register_fake": lambda op, lib: register_fake(op, lambda x: x, lib=lib),
    "register_autograd": lambda op, lib: register_autograd(op, lambda ctx, grad: grad, lib=lib),
    "register_jvp": lambda op, lib: register_jvp(op, lambda ctx, x_t: x_t, lib=lib),
    "@register_jvp": lambda op, lib: register_jvp(op, lib=lib)(lambda ctx, x_t: x_t),
    "register_vmap": lambda op, lib: register_vmap(op, lambda info, dims, x: (x, 0), lib=lib),
    "register_autocast": lambda op, lib: register_autocast(op, "cpu", "float32", lib=lib),
}
OF_DEFINITIONS = [each for each in REGISTER if not each.endswith("impl")]


@pytest.mark.parametrize("how", REGISTER)
def test_a_registration_is_from_the_users_file(how):
    with Library("unit_test", "DEF") as lib:
        define("unit_test::f", "(Tensor x) -> Tensor", lib=lib)
        REGISTER[how]("unit_test::f", lib)
        op = ops.unit_test.f.default
        [kernel] = op.kernels()
        for place in (op.defined_at, kernel.registration.site):
            assert place.rpartition(":")[0] == __file__


@pytest.fixture
def make():
    made = []

    def make():
        made.append(
            custom_op(
                "unit_test::g",
                lambda x: x + 1,
                mutates_args=(),
                schema="(Tensor x) -> Tensor",
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.mark.parametrize("how", OF_DEFINITIONS)
@pytest.mark.parametrize("named", [True, False])
def test_registration_for_a_definition_ends_with_it(make, how, named):
    first = make()
    own = {each.key for each in first.overload.kernels()}
    REGISTER[how](first._qualname if named else first, None)
    second = make()
    assert {each.key for each in second.overload.kernels()} == own
    np.testing.assert_array_equal(second(np.zeros(2)), [1, 1])


@pytest.mark.parametrize("how", OF_DEFINITIONS)
def test_registration_with_a_library_ends_with_it(make, how):
    op = make()
    own = [each.registration for each in op.overload.kernels()]
    with Library("unit_test", "FRAGMENT") as lib:
        REGISTER[how](op, lib)
        assert len(op.overload.kernels()) == len(own) + 1
    assert [each.registration for each in op.overload.kernels()] == own

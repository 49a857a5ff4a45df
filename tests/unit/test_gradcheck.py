"""The check of derivatives by finite differences."""

import numpy as np
import pytest

from opdispatch import AutogradError, Library, ops
from opdispatch import array_api as xp
from opdispatch.autograd import gradcheck, gradgradcheck
from tests.unit.leaf_tensors import leaf


def wrong_after(factor):
    """A product whose gradient is ``factor`` times the right one: a part of it is hidden."""

    def function(x, y):
        return x * y * factor + (x * y * (1 - factor)).detach()

    return function


def test_right_derivatives():
    x, y = leaf(0.5, -1.5), leaf(2.0, 1.0)
    assert gradcheck(lambda x: xp.sin(x) * x, x)
    assert gradcheck(wrong_after(1.0), (x, y))
    assert gradgradcheck(lambda x: xp.exp(x) * x, [x])
    assert gradgradcheck(wrong_after(1.0), (x, y), leaf(1.0, 2.0))


def test_a_wrong_derivative_is_shown_beside_the_differences():
    x, y = leaf(1.0, 2.0), leaf(3.0, 4.0)
    with pytest.raises(AutogradError) as error:
        gradcheck(wrong_after(0.5), (x.detach(), y))
    text = str(error.value)
    assert "output 0 with respect to input 1" in text
    differences, gradients = text.split("differences:")[1].split("gradients:")
    assert differences.split() == ["[[1.", "0.]", "[0.", "2.]]"]
    assert gradients.split() == ["[[0.5", "0.", "]", "[0.", "1.", "]]"]
    assert not gradcheck(wrong_after(0.5), (x, y), raise_exception=False)
    assert gradcheck(wrong_after(0.5), (x, y), rtol=0.6)


def test_a_gradient_that_does_not_depend_on_the_graph_is_seen():
    x = leaf(1.0, 2.0)
    assert gradcheck(lambda x: x * x, x)
    assert not gradcheck(lambda x: xp.square(x.detach()), x, raise_exception=False)
    once = lambda x: x * x.detach() * 2 - xp.square(x.detach())  # noqa: E731
    assert gradcheck(once, x)
    assert not gradgradcheck(once, x, raise_exception=False)


def test_complex_numbers_have_two_columns_and_two_rows():
    z = leaf(1 + 2j, dtype=np.complex128)
    assert gradcheck(lambda z: z * z, z)
    assert gradcheck(lambda z: xp.real(z) * xp.imag(z), z)
    with pytest.raises(
        AutogradError, match=r"differences:\n\[\[ *1\. *-?0\.\]\n *\[ *-?0\. *1\.\]"
    ):
        gradcheck(
            lambda z: xp.conj(z).detach() + z - xp.conj(z.detach()) + z * 1j - 1j * z.detach(), z
        )


def test_several_outputs_lists_and_what_is_no_tensor():
    x = leaf(3.0, 1.0, 2.0)
    assert gradcheck(lambda x, n: xp.unstack(x * n), (x, 3))
    assert gradcheck(lambda x: (xp.sort(x), xp.argsort(x), None), x)
    with pytest.raises(AutogradError, match="output 1 with respect to input 0"):
        gradcheck(lambda x: [x * 1, x.detach() * 1], x)


def test_inputs_that_cannot_be_checked():
    with pytest.raises(AutogradError, match="no input that requires a gradient"):
        gradcheck(lambda x: x, xp.ones(3))
    with pytest.warns(UserWarning, match="input 0 of gradcheck is of float32"):
        assert not gradcheck(
            lambda x: xp.exp(x) * 1e4, leaf(3, dtype=np.float32), raise_exception=False
        )


def test_kernels_may_give_plain_arrays():
    with Library("plain", "DEF") as lib:
        lib.define("cube(Tensor x) -> Tensor")
        lib.impl("cube", lambda x: np.asarray(x) ** 3, "CPU")
        lib.register_autograd(
            "cube",
            lambda ctx, grad: grad * 3 * ctx.saved_tensors[0] ** 2,
            setup_context=lambda ctx, inputs, output: ctx.save_for_backward(*inputs),
        )
        assert gradcheck(ops.plain.cube, leaf(1.0, 2.0))
        assert gradgradcheck(ops.plain.cube, [leaf(1.0, 2.0)])

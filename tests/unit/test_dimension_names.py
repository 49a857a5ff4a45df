"""Names of dimensions: what has some is refused by operators that do not know of them."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from opdispatch import ArgumentError, DispatchKey, Library, NoKernelError, Tensor, ops
from opdispatch import array_api as xp


@pytest.fixture
def named() -> Tensor:
    return Tensor(np.ones((2, 3))).rename("N", "C")


def test_only_a_tensor_with_names_has_the_key(named):
    plain = Tensor(np.ones((2, 3)))
    assert (plain.names, plain.has_names(), plain.key_set.has(DispatchKey.Named)) == (
        (None, None),
        False,
        False,
    )
    assert (named.names, named.has_names(), named.key_set.has(DispatchKey.Named)) == (
        ("N", "C"),
        True,
        True,
    )
    assert named.rename(None).key_set == plain.key_set
    assert named.detach().names == ("N", "C")
    assert repr(named).endswith("names=('N', 'C'))")


def test_a_tensor_begins_with_names(named):
    made = Tensor(np.ones((2, 3)), names=("N", "C"), requires_grad=True)
    assert made.names == ("N", "C")
    assert made.key_set == named.key_set
    assert made.is_leaf
    assert Tensor(made, names=["N", None]).names == ("N", None)
    plain = Tensor(np.ones((2, 3)), names=(None, None))
    assert plain.key_set == Tensor(np.ones((2, 3)), names=None).key_set
    assert not plain.has_names()
    assert Tensor(np.float64(1.0), names=()).names == ()
    with pytest.raises(NoKernelError, match="not yet supported with named tensors"):
        xp.exp(made)


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("NC", r"and not the text 'NC' \(names=\('NC',\)\)"),
        (("N",), "1 names .* were given to 2 dimensions"),
        (("N", "N"), "'N' was given to more than one dimension"),
        (("N", ...), "is an identifier or None, not Ellipsis"),
        (("N", 3), "is an identifier or None, not 3"),
    ],
)
def test_names_that_a_tensor_cannot_begin_with(names, words):
    with pytest.raises(ArgumentError, match=words):
        Tensor(np.ones((2, 3)), names=names)


def test_names_are_changed_as_pytorch_did(named):
    assert named.rename("A", None).names == ("A", None)
    assert named.rename(["A", "B"]).names == ("A", "B")
    assert named.rename(C="A").names == ("N", "A")
    assert named.rename(N=None).names == (None, "C")
    assert named.rename(..., "A").names == ("N", "A")
    assert named.rename("A", ...).names == ("A", "C")
    assert named.names == ("N", "C")


@pytest.mark.parametrize(
    ("names", "renamed", "words"),
    [
        (("A",), {}, "1 names .* were given to 2 dimensions"),
        (("A", "B", "C", ...), {}, "3 names"),
        (("A", "A"), {}, "'A' was given to more than one dimension"),
        (("1", "B"), {}, "is an identifier or None, not '1'"),
        ((3, "B"), {}, "is an identifier or None, not 3"),
        ((..., ...), {}, "one ellipsis"),
        ((), {"X": "Y"}, "was given 'X', which is not among"),
        (("A", "B"), {"N": "A"}, "not both"),
    ],
)
def test_names_that_cannot_be(named, names, renamed, words):
    with pytest.raises(ArgumentError, match=words):
        named.rename(*names, **renamed)


@pytest.mark.parametrize("call", [xp.exp, lambda x: x + 1, lambda x: x[0], lambda x: x @ x.T])
def test_an_operator_that_knows_of_no_names_says_what_to_do(named, call):
    with pytest.raises(NoKernelError, match="is not yet supported with named tensors"):
        call(named)
    assert call(named.rename(None)) is not None


def test_an_operator_with_a_kernel_for_named_takes_them(named):
    def kernel(x):
        return xp.exp(x.rename(None)).rename(*x.names)

    with Library("array", "IMPL", "Named") as lib:
        lib.impl("exp", kernel)
        assert ops.array.exp(named).names == ("N", "C")


def test_gradients_go_through_names():
    x = Tensor(np.ones(3), requires_grad=True)
    y = (x.rename("N").rename(None) * 2).rename("M")
    gc.collect()
    xp.sum(y.rename(None)).backward()
    assert x.grad.array.tolist() == [2, 2, 2]

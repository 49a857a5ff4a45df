"""Tensors that are copied and pickled: leaves again, each with a gradient of its own."""

import copy
import pickle

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor, no_grad
from opdispatch import array_api as xp
from tests.unit.leaf_tensors import leaf


def used():
    """A leaf that has a gradient, and a place in a graph."""
    x = leaf(1.0, 2.0)
    xp.sum(x * x).backward()
    return x


def test_a_deep_copy_has_elements_and_a_gradient_of_its_own():
    x = used()
    copied = copy.deepcopy(x)
    xp.sum(copied * copied).backward()
    assert copied.grad.array.tolist() == [4.0, 8.0]
    assert x.grad.array.tolist() == [2.0, 4.0]
    with no_grad():
        copied[0] = 9.0
    assert x.array.tolist() == [1.0, 2.0]


def test_deepcopy_copies_repeated_tensor_once():
    x = used()
    one, other = copy.deepcopy([x, {"x": x}])
    assert one is other["x"]


def test_a_tensor_that_was_calculated_is_not_copied_with_its_graph():
    with pytest.raises(AutogradError, match=r"MultiplyBackward.*detach"):
        copy.deepcopy(leaf(1.0) * 2)


def test_a_pickled_tensor_is_a_leaf_without_a_gradient():
    x = pickle.loads(pickle.dumps(used()))
    assert (x.requires_grad, x.grad, x.array.tolist()) == (True, None, [1.0, 2.0])
    y = pickle.loads(pickle.dumps(leaf(1.0) * 2))
    assert (y.requires_grad, y.is_leaf, y.array.tolist()) == (True, True, [2.0])


def test_a_shallow_copy_shares_elements_and_their_version():
    x = leaf(1.0) * 2
    copied = copy.copy(x)
    assert (copied.requires_grad, copied.is_leaf) == (True, True)
    with no_grad():
        copied[0] = 5.0
    assert (x.array.tolist(), x._version) == ([5.0], 1)


def test_names_and_keys_stay():
    x = Tensor(np.ones((2, 3))).rename("row", "column")
    for copied in (copy.deepcopy(x), pickle.loads(pickle.dumps(x)), copy.copy(x)):
        assert (copied.names, copied.key_set) == (("row", "column"), x.key_set)
    conj = Tensor(np.array([1j])).conj()
    assert copy.deepcopy(conj).is_conj()
    assert copy.deepcopy(conj).resolve_conj().array.tolist() == [-1j]

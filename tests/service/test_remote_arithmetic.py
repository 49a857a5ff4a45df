"""Calculating with remote tensors as with those of this process: nothing but numbers comes back."""

from __future__ import annotations

import array_api_compat
import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import ArgumentError, DeviceError, Tensor
from opdispatch import array_api as xp
from opdispatch_client import RemoteTensor
from tests.service.running_daemon import RunningDaemon

SHARED_WORKERS = 1
X = np.arange(6.0).reshape(2, 3)


@pytest.fixture
def x(standard: oc.Session) -> RemoteTensor:
    return standard.put(X)


def test_the_namespace_takes_them(x: RemoteTensor):
    y = xp.sin(x) * 2 + 1
    assert isinstance(y, RemoteTensor)
    np.testing.assert_array_equal(y.numpy(), np.sin(X) * 2 + 1)
    for result, expected in (
        (xp.sum(x, axis=0), X.sum(axis=0)),
        (xp.concat([x, x], axis=1), np.concat([X, X], axis=1)),
        (xp.where(x > 2, x, 0.0), np.where(X > 2, X, 0.0)),
        (xp.zeros_like(x), np.zeros_like(X)),
        (xp.linalg.vector_norm(x), np.linalg.vector_norm(X)),
        (x @ x.mT, X @ X.mT),
        (x.T, X.T),
        (2 - x, 2 - X),
    ):
        assert isinstance(result, RemoteTensor)
        np.testing.assert_array_equal(result.numpy(), expected)


def test_several_results_and_lists_of_them(x: RemoteTensor):
    u, s, vh = xp.linalg.svd(x, full_matrices=False)
    np.testing.assert_allclose((u * s @ vh).numpy(), X, atol=1e-12)
    counts = xp.unique_counts(x)
    assert counts.counts.numpy().tolist() == [1] * 6
    assert [row.numpy().tolist() for row in xp.unstack(x)] == X.tolist()


def test_they_go_with_tensors_and_arrays_of_this_process(x: RemoteTensor):
    for other in (np.ones(3), xp.ones(3), Tensor(np.ones(3), requires_grad=True)):
        for result in (x + other, xp.add(other, x)):
            assert isinstance(result, RemoteTensor)
            np.testing.assert_array_equal(result.numpy(), X + 1)


def test_indexing_and_assignment(x: RemoteTensor):
    assert x[1, 1:].numpy().tolist() == [4, 5]
    assert x[x > 3].numpy().tolist() == [4, 5]
    x[0] = 7
    x[:, 2] = np.array([8.0, 9.0])
    x[x == 3] = -1.0
    assert x.numpy().tolist() == [[7, 7, 8], [-1, 4, 9]]
    assert [row.numpy().tolist() for row in x] == [[7, 7, 8], [-1, 4, 9]]


def test_operators_that_write_change_the_value_itself(x: RemoteTensor):
    same = x
    x += 1
    x *= 2
    assert x is same
    np.testing.assert_array_equal(same.numpy(), (X + 1) * 2)
    with pytest.raises(ArgumentError, match="cannot be written to a tensor of shape"):
        x += np.ones((4, 2, 3))


def test_numbers_come_when_they_are_asked_for(x: RemoteTensor):
    assert float(xp.sum(x)) == 15.0
    assert xp.sum(x).item() == 15.0
    assert (x[0] + 1).tolist() == [1.0, 2.0, 3.0]
    assert bool(xp.all(x == x))
    assert xp.full(2, xp.max(x)).array.tolist() == [5, 5]
    assert [1, 2, 3][xp.argmax(x[0])] == 3


def test_code_for_the_standard_takes_them(x: RemoteTensor):
    def normalized(x):
        xp = array_api_compat.array_namespace(x)
        return x / xp.linalg.vector_norm(xp.asarray(x))

    np.testing.assert_allclose(normalized(x).numpy(), X / np.linalg.vector_norm(X))


def test_asarray_leaves_them_where_they_are(x: RemoteTensor):
    assert xp.asarray(x) is x
    assert xp.asarray(x, device="cpu") is x
    assert xp.asarray(x, dtype=xp.float32).dtype == np.float32
    copy = xp.asarray(x, copy=True)
    copy[...] = 0.0
    np.testing.assert_array_equal(x.numpy(), X)
    with pytest.raises(ValueError, match="must copy"):
        xp.asarray(x, dtype=xp.float32, copy=False)
    with pytest.raises(DeviceError, match="no interpreter has the device 'cuda:0'"):
        xp.asarray(x, device="cuda:0")


def test_a_tensor_of_one_has_its_elements(x: RemoteTensor):
    np.testing.assert_array_equal(Tensor(x).array, X)
    assert (X + x).tolist() == (2 * X).tolist()  # NumPy's own operator gets them


def test_they_can_be_kept_in_sets(x: RemoteTensor):
    assert x in {x}


def test_errors_of_remote_arithmetic_reach_the_caller(standard: oc.Session, x: RemoteTensor):
    with pytest.raises(oc.KernelError, match=r"\(2,3\) \(5,\)"):
        x + np.ones(5)
    with pytest.raises(oc.KernelError, match="IndexError"):
        x[7]
    x.close()
    with pytest.raises(oc.RemoteValueGoneError, match="it was closed"):
        xp.sum(x)


def test_without_the_library_there_the_operator_is_missing(daemon: RunningDaemon):
    with daemon.connect() as session:
        x = session.put(X)
        with pytest.raises(oc.OperatorNotFoundError, match="array::add"):
            x + 1

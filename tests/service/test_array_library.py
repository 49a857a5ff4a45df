"""The library ``array``, loaded into interpreters and called like any other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.conftest import WriteLibrary
from tests.service.running_daemon import RunningDaemon

pytestmark = pytest.mark.smoke

NAME = "opdispatch.array_library"
X = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


@pytest.fixture(scope="module")
def standard(shared_daemon: RunningDaemon) -> Iterator[oc.Session]:
    with shared_daemon.connect() as session:
        session.load(NAME)
        yield session
        assert session.check_invariants() == []
        session.unload("array_library")


def test_arrays_scalars_lists_and_several_results(standard: oc.Session):
    array = standard.ops.array
    for _ in range(3):  # the first goes through the daemon
        np.testing.assert_array_equal(array.add(X, X), 2 * X)
        np.testing.assert_array_equal(array.multiply(X, 3.0), 3 * X)
        np.testing.assert_array_equal(array.subtract(1.0, X), 1 - X)
        np.testing.assert_array_equal(array.sum(X, axis=(0, 1), keepdims=True), [[10.0]])
        np.testing.assert_array_equal(array.concat([X, X], axis=1), np.concat([X, X], axis=1))
    u, s, vh = array.linalg_svd(X)
    np.testing.assert_allclose(u * s @ vh, X, rtol=1e-5)
    assert [each.tolist() for each in array.unstack(X)] == [[1, 2], [3, 4]]


def test_arrays_that_are_made_of_none(standard: oc.Session):
    array = standard.ops.array
    assert array.zeros((2, 3), dtype=np.int8).dtype == np.int8
    assert array.arange(5).tolist() == [0, 1, 2, 3, 4]
    assert array.full(3, 2.5, device="cpu").tolist() == [2.5] * 3


def test_remote_tensors_stay_where_they_are(standard: oc.Session):
    x = standard.put(X)
    y = standard.call("array::matmul", x, x, remote=True)
    np.testing.assert_array_equal(standard.call("array::add", y, 1.0), X @ X + 1)


def test_behaviour_undefined_by_the_standard_raises_kernel_error(standard: oc.Session):
    with pytest.raises(oc.KernelError, match="has no common type"):
        standard.ops.array.add(X, np.ones(2, np.int32))
    with pytest.raises(oc.KernelError, match="300, which is out of bounds for uint8: its numbers"):
        standard.ops.array.add(np.zeros(2, np.uint8), 300)
    with pytest.raises(oc.KernelError, match=r"\(2,2\) \(3,\)"):
        standard.ops.array.add(X, np.ones(3, np.float32))


def test_array_library_keeps_its_operators_after_second_load(standard: oc.Session):
    again = standard.load(NAME)
    # Where the module's file can be found, the daemon sees that it is what is loaded already.
    assert again.version == (1 if again.already_loaded else 2)
    np.testing.assert_array_equal(standard.ops.array.add(X, X), 2 * X)
    operators = {operator.name for operator in standard.operators()}
    assert {"array::add.Tensor", "array::linalg_det", "array::fft_fft"} <= operators


ARITHMETIC = """
from opdispatch import Library, Tensor

lib = Library("arithmetic", "DEF")
lib.define("double_negative(Tensor x) -> Tensor")
lib.impl("double_negative", lambda x: -(Tensor(x) + Tensor(x)), "CPU")
"""


def test_kernels_calculate_with_tensors_by_themselves(
    daemon: RunningDaemon, write_library: WriteLibrary
):
    """Before and after the library is loaded, there and elsewhere."""
    with daemon.connect() as session:
        session.load(write_library("arithmetic", ARITHMETIC), interpreters=2)
        double_negative = session.with_options().ops.arithmetic.double_negative
        for place in ("", "worker-1", "worker-2"):
            if place:
                session.load(NAME, interpreter=place)
                np.testing.assert_array_equal(session.ops.array.add(X, X), 2 * X)
            for _ in range(4):
                np.testing.assert_array_equal(double_negative(X), -2 * X)
            _, lines = session.trace("arithmetic::double_negative", X)
            assert len({line.interpreter for line in lines if line.interpreter}) == 1
        assert session.check_invariants() == []

"""Warnings of traces that may be wrong for other inputs."""

import warnings

import numpy as np
import pytest

from opdispatch import (
    Library,
    Tensor,
    TracerWarning,
    no_grad,
    trace,
)
from opdispatch import array_api as xp
from tests.unit.traced_graphs import X, equal


@pytest.mark.parametrize(
    ("read", "what"),
    [
        (lambda x: x if xp.sum(x) else -x, r"bool\(\) of a tensor"),
        (lambda x: x * float(xp.sum(x)), r"float\(\) of a tensor"),
        (lambda x: x * int(xp.sum(x)), r"int\(\) of a tensor"),
        (lambda x: x * complex(xp.sum(x)).real, r"complex\(\) of a tensor"),
        (lambda x: x * xp.sum(x).item(), r"item\(\) of a tensor"),
        (lambda x: x[: xp.argmax(x[1])], "as an index"),
        (lambda x: x * len(x), r"len\(\) of a tensor"),
        (lambda x: sum(row for row in x), r"len\(\) of a tensor"),
        (lambda x: x * np.asarray(xp.exp(x)).max(), "as NumPy's array"),
        (lambda x: x * np.sin(x).max(), "in a function of NumPy's"),
        (lambda x: x * np.from_dlpack(x + 1).max(), "by DLPack"),
        (lambda x: x + xp.full((3,), xp.sum(x)), "a number out of a tensor"),
        (lambda x: x + xp.asarray([xp.sum(x)]), "in a list given to asarray"),
        (lambda x: x + x.to_sparse().to_dense(), "method of its layout"),
        (lambda x: x + Tensor(x.array[0]), "shares memory with one of the graph"),
        (lambda x: Tensor(np.ones(2)), "an output of the graph, .*, is a constant of it"),
    ],
)
def test_reading_a_tensor_in_python_warns_and_records_a_constant(read, what):
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # outside of a trace nothing is
        expected = read(Tensor(X))
    with pytest.warns(TracerWarning, match=what) as caught:
        graph = trace(read, Tensor(X))
    assert {each.filename for each in caught} == {__file__}
    assert equal(graph(Tensor(X)), expected)


def test_a_number_that_an_operator_returns_is_warned_of(dispatcher):
    library = Library("t", "DEF", dispatcher=dispatcher)
    library.define("count(Tensor x) -> int")
    library.impl("count", lambda x: x.size, "CPU")
    count = dispatcher.get_schema("t::count")
    with pytest.warns(TracerWarning, match="t::count returns a number"):
        graph = trace(lambda x: x * count(x), X)
    assert "%count : int = t::count(%x)" in str(graph)
    assert equal(graph(X[:1]), X[:1] * 6)


def test_kernels_and_what_no_input_leads_to_are_not_warned_of():
    def function(x):
        n = float(xp.asarray(3.0))  # not of the graph
        return xp.linalg.svdvals(x) * n  # its kernel looks at its tensors

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trace(function, Tensor(X))
        trace(function, Tensor(X), pre_dispatch=True)
        with no_grad():
            trace(lambda x: xp.asarray(x, copy=True) + 1, Tensor(X))

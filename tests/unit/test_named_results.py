"""Operators whose schema names several returns return named tuples."""

from __future__ import annotations

import copy
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch import Library, Tensor, array_api, func, ops
from opdispatch.boxing.named_results import make_results, names_of_results
from opdispatch.tracing.pytree import map_leaves

X = np.arange(3.0)


@pytest.fixture
def lib():
    with Library("named", "DEF") as lib:
        lib.define("minmax(Tensor x) -> (Tensor least, Tensor greatest)")
        lib.impl("minmax", lambda x: (x.min(keepdims=True), x.max(keepdims=True)), "CPU")
        lib.define("both.a(Tensor x) -> (Tensor least, Tensor greatest)")
        lib.define("both.b(Tensor x, int n) -> (Tensor, Tensor)")
        for name in ("both.a", "both.b"):
            lib.impl(name, lambda x, n=0: (x, x), "CPU")
        yield lib


def test_results_have_the_names_of_the_schema(lib):
    result = ops.named.minmax(X)
    assert (result.least, result.greatest) == (0, 2)
    assert isinstance(result, tuple)
    assert result == (0, 2)
    assert result._fields == ("least", "greatest")
    assert repr(result).startswith("Results(least=")
    least, greatest = result
    assert (least, greatest) == (0, 2)
    assert type(ops.named.both(X)) is type(ops.named.minmax.default(X)) is type(result)


@pytest.mark.parametrize(
    "returns", ["(Tensor, Tensor)", "(Tensor least, Tensor)", "(Tensor, Tensor greatest)"]
)
def test_results_without_all_names_are_plain_tuples(lib, returns):
    lib.define(f"plain(Tensor x) -> {returns}")
    lib.impl("plain", lambda x: (x, x), "CPU")
    assert type(ops.named.plain(X)) is tuple
    assert type(ops.named.both(X, 1)) is tuple


def test_one_result_and_none_are_what_they_were(lib):
    lib.define("one(Tensor x) -> Tensor named")
    lib.define("none(Tensor x) -> ()")
    lib.impl("one", lambda x: x, "CPU")
    lib.impl("none", lambda x: None, "CPU")
    assert ops.named.one(X) is X
    assert ops.named.none(X) is None


def test_every_way_of_calling_gives_names(lib):
    op = ops.named.minmax.default
    keys = op.dispatch_keys([X])
    assert op.redispatch(keys, X).greatest == 2
    assert op.interpret_call([X], {}).greatest == 2
    stack = [X]
    op.call_boxed(stack)
    assert type(stack) is list
    lib.define("outer(Tensor x) -> (Tensor least, Tensor greatest)")
    lib.impl("outer", lambda x: ops.named.minmax(x), "CompositeImplicitAutograd")
    assert ops.named.outer(X).greatest == 2
    lib.define("of_list(Tensor x) -> (Tensor[] parts, int count, str lambda)")
    lib.impl("of_list", lambda x: [[x], 1, "text"], "CPU")
    assert ops.named.of_list(X).count == 1
    assert ops.named.of_list(X)[2] == "text"  # Python's keyword is no attribute


def test_tensors_with_gradients_and_transforms_have_names(lib):
    def rules(x):
        return ops.named.pair(x)

    lib.define("pair(Tensor x) -> (Tensor twice, Tensor thrice)")
    lib.impl("pair", lambda x: (x * 2, x * 3), "CompositeImplicitAutograd")
    tensor = Tensor(X, requires_grad=True)
    assert rules(tensor).thrice.requires_grad
    array_api.sum(rules(tensor).thrice).backward()
    np.testing.assert_array_equal(tensor.grad, [3, 3, 3])
    batched = func.vmap(rules)(Tensor(np.ones((4, 3))))
    assert batched.twice.shape == (4, 3)
    assert func.vmap(lambda x: rules(x).twice)(Tensor(np.ones((4, 3)))).shape == (4, 3)


def test_results_can_be_copied_and_pickled(lib):
    result = ops.named.minmax(X)
    for other in (
        copy.copy(result),
        copy.deepcopy(result),
        pickle.loads(pickle.dumps(result)),
        map_leaves(lambda leaf: leaf, result),
        result._replace(least=0),
    ):
        assert type(other) is type(result)
        assert other == result
    assert result._asdict() == {"least": 0, "greatest": 2}


@given(st.lists(st.text(max_size=8), min_size=2, max_size=5))
def test_any_names_make_a_tuple_of_the_values(names):
    values = list(range(len(names)))
    made = make_results(tuple(names), values)
    assert made == tuple(values)
    assert names_of_results(made) == tuple(names)
    assert pickle.loads(pickle.dumps(made)) == made
    for place, name in enumerate(names):
        if name.isidentifier() and names.count(name) == 1 and made._fields[place] == name:
            assert getattr(made, name) == place

"""Functionalized programs beside PyTorch's: what they compute, and which operators are called.

Random programs take views and write to them. On both sides a mode notes the operators that are
left, with the shapes of what they return; those that differ in name alone have one name here.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import Tensor, TorchDispatchMode, functionalize
from opdispatch import array_api as xp
from opdispatch.functorch.functionalization import FunctionalTensor

torch = pytest.importorskip("torch")
TheirMode = pytest.importorskip("torch.utils._python_dispatch").TorchDispatchMode
REMOVE = ("mutations", "mutations_and_views")

OUR_NAMES = {
    "expand_dims": "unsqueeze",
    "matrix_transpose": "t",
    "moveaxis": "permute",
    "permute_dims": "permute",
    "multiply": "mul",
    "reshape": "view",
    "unstack": "unbind",
    "linalg_diagonal": "diagonal",
}
THEIR_NAMES = {
    "slice_scatter": "scatter",
    "select_scatter": "scatter",
    "diagonal_scatter": "scatter",
    "_unsafe_view": "view",
}
# Ours, theirs, and how many dimensions they are of, at least.
VIEWS = {
    "row": (lambda x: x[0], lambda x: x[0], 1),
    "last column": (lambda x: x[:, -1], lambda x: x[:, -1], 2),
    "slice": (lambda x: x[1:], lambda x: x[1:], 1),
    "steps": (lambda x: x[::2], lambda x: x[::2], 1),
    "t": (
        lambda x: xp.matrix_transpose(x) if x.ndim == 2 else x,
        lambda x: x.t() if x.ndim == 2 else x,
        2,
    ),
    "permute": (
        lambda x: xp.permute_dims(x, (-1, *range(x.ndim - 1))),
        lambda x: x.permute(-1, *range(x.ndim - 1)),
        1,
    ),
    "movedim": (lambda x: xp.moveaxis(x, 0, -1), lambda x: x.movedim(0, -1), 2),
    "unsqueeze": (lambda x: xp.expand_dims(x, axis=1), lambda x: x.unsqueeze(1), 1),
    "squeeze": (
        lambda x: xp.squeeze(x, axis=0) if x.shape[0] == 1 else x,
        lambda x: x.squeeze(0) if x.shape[0] == 1 else x,
        1,
    ),
    "view": (lambda x: xp.reshape(x, (-1,)), lambda x: x.reshape(-1), 2),
    "unbind": (lambda x: xp.unstack(x, axis=1)[0], lambda x: x.unbind(1)[0], 2),
    "diagonal": (
        lambda x: xp.linalg.diagonal(x, offset=1),
        lambda x: x.diagonal(1, -2, -1),
        2,
    ),
}


def _write(x, y):
    x[...] = x * 2 + xp.sum(y)


def _write_theirs(x, y):
    x.copy_(x * 2 + y.sum())


def run(steps, side, x, make, values=None):
    values, results = [] if values is None else values, []
    values += [x, make()]
    for name, one, other in steps:
        value = values[one % len(values)]
        if name == "write":
            (_write, _write_theirs)[side](value, values[other % len(values)])
        elif value.ndim >= VIEWS[name][2] and 0 not in value.shape:
            values.append(VIEWS[name][side](value))
        results.append(value * 3)
    return [*values, *results]


class Ours(TorchDispatchMode):
    """Notes what is called, by PyTorch's names."""

    def __init__(self):
        super().__init__()
        self.called = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name, copies = func.name.unqualified_name, ""
        if name.endswith("_copy"):
            name, copies = name.removesuffix("_copy"), "_copy"
        if name == "getitem":
            name = "select" if 1 not in args[3][-1:] and args[3][-1] is None else "slice"
        if name == "setitem":
            is_whole = args[1:5] == ([], [], [], [])
            name = "copy" if is_whole else "scatter"
        self.called.append((OUR_NAMES.get(name, name) + copies, shapes(result)))
        return result


class Theirs(TheirMode):
    """The same."""

    def __init__(self, remove):
        super().__init__()
        self.called, self.remove, self.previous = [], remove, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        name = func.name().removeprefix("aten::").partition(".")[0]
        previous, self.previous = self.previous, name
        if name == "_unsafe_view":
            if previous != "clone":
                return result  # what was written to a reshape that copied, brought to that copy
            self.called.pop()  # the clone: together they are a reshape that copies
            name = "view" if self.remove == "mutations" else "view_copy"
        self.called.append((THEIR_NAMES.get(name, name), shapes(result)))
        return result


def shapes(result):
    if isinstance(result, list | tuple):
        return [tuple(each.shape) for each in result]
    return tuple(result.shape)


def without_copying_reshapes(steps):
    """Without reshapes of what is not contiguous: with ``remove="mutations_and_views"``, PyTorch
    takes them for views, since its copies of views are contiguous, and they are none otherwise."""
    kept = []
    for step in steps:
        x = torch.zeros(2, 3, dtype=torch.float64)
        values = []
        run(kept, 1, x, lambda: torch.zeros(2, 2, dtype=torch.float64), values)
        if step[0] != "view" or values[step[1] % len(values)].is_contiguous():
            kept.append(step)
    return kept


@pytest.fixture(scope="module", autouse=True)
def as_stale_as_theirs():
    """A new view of what was written to is out of date in PyTorch, and is made a second time."""
    view = FunctionalTensor.view

    def stale_view(self, value, meta):
        made = view(self, value, meta)
        made._generation = 0
        return made

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FunctionalTensor, "view", stale_view)
        yield


NAMES = (*VIEWS, *("write",) * 8)


@pytest.mark.parametrize("remove", REMOVE)
@settings(max_examples=25, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(NAMES), st.integers(0, 9), st.integers(0, 9)), max_size=9
    )
)
def test_random_programs_call_what_those_of_pytorch_call(remove, steps):
    if remove == "mutations_and_views":
        steps = without_copying_reshapes(steps)
    start = np.arange(6.0).reshape(2, 3)
    x, theirs = Tensor(start.copy()), torch.from_numpy(start.copy())
    with Ours() as mode:
        results = functionalize(
            lambda x: run(steps, 0, x, lambda: xp.zeros((2, 2))), remove=remove
        )(x)
    with Theirs(remove) as their_mode:
        wanted = torch.func.functionalize(
            lambda x: run(steps, 1, x, lambda: torch.zeros(2, 2, dtype=torch.float64)),
            remove=remove,
        )(theirs)
    for one, other in zip([x, *results], [theirs, *wanted], strict=True):
        assert tuple(one.shape) == tuple(other.shape)
        np.testing.assert_allclose(one.array, other.numpy(), rtol=1e-12)
    assert mode.called == their_mode.called

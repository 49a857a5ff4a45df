"""Fake tensors beside PyTorch's: facts of what random programs make, and what is refused."""

from __future__ import annotations

import logging

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import (
    DataDependentOutputError,
    DuplicateDefinitionError,
    Library,
    OpdispatchError,
    ops,
    register_fake,
)
from opdispatch import array_api as xp
from opdispatch.fake_tensor import FakeTensorMode, is_fake

torch = pytest.importorskip("torch")
logging.getLogger("torch._subclasses").setLevel(logging.CRITICAL)  # each error has a traceback
theirs_module = pytest.importorskip("torch._subclasses.fake_tensor")

DEVICES = ("cpu", "cuda", "cuda:1", "xpu")
SHAPES = ((), (3,), (1, 3), (2, 3), (3, 2), (2, 1, 3))

# Each operator on both sides; what is given is tensors.
UNARY = {
    "exp": (xp.exp, torch.exp),
    "add one": (lambda x: x + 1, lambda x: x + 1),
    "sum": (xp.sum, torch.sum),
    "mean of the last": (lambda x: xp.mean(x, axis=-1), lambda x: torch.mean(x, dim=-1)),
    "one more dimension": (
        lambda x: xp.expand_dims(x, axis=0),
        lambda x: torch.unsqueeze(x, 0),
    ),
    "flat": (lambda x: xp.reshape(x, (-1,)), lambda x: torch.reshape(x, (-1,))),
    "zeros": (xp.zeros_like, torch.zeros_like),
    "zeros on the host": (
        lambda x: xp.zeros_like(x, device="cpu"),
        lambda x: torch.zeros_like(x, device="cpu"),
    ),
    "ones on a GPU": (
        lambda x: xp.ones_like(x, device="cuda:1"),
        lambda x: torch.ones_like(x, device="cuda:1"),
    ),
    "positive": (lambda x: x > 0, lambda x: x > 0),
    "new": (
        lambda x: xp.ones(x.shape, dtype=xp.float32, device="xpu"),
        lambda x: torch.ones(x.shape, device="xpu"),
    ),
}
BINARY = {
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "maximum": (xp.maximum, torch.maximum),
    "less": (lambda x, y: x < y, lambda x, y: x < y),
    "matmul": (lambda x, y: x @ y, lambda x, y: x @ y),
    "stack": (lambda x, y: xp.stack([x, y]), lambda x, y: torch.stack([x, y])),
    "concat": (lambda x, y: xp.concat([x, y]), lambda x, y: torch.cat([x, y])),
    "where": (lambda x, y: xp.where(x > 0, x, y), lambda x, y: torch.where(x > 0, x, y)),
}

starts = st.lists(
    st.tuples(st.sampled_from(SHAPES), st.sampled_from(DEVICES)), min_size=2, max_size=4
)
steps = st.lists(
    st.tuples(st.sampled_from([*UNARY, *BINARY, *BINARY]), st.integers(0, 20), st.integers(0, 20)),
    max_size=6,
)


def outcome(call, tensors, places):
    try:
        return call(*(tensors[place] for place in places))
    except (RuntimeError, TypeError, ValueError, IndexError, OpdispatchError) as error:
        return error


def is_about_devices(error):
    return "found at least two devices" in str(error)


def facts(value):
    return str(value.device), tuple(value.shape), str(value.dtype).removeprefix("torch.")


def canonical(device):
    return device if device == "cpu" or ":" in device else f"{device}:0"


@settings(max_examples=40, deadline=None)
@given(starts, steps)
def test_devices_and_shapes_are_those_of_pytorch(start, steps):
    theirs_mode = theirs_module.FakeTensorMode()
    with FakeTensorMode(), theirs_mode:
        ours = [xp.zeros(s, dtype=xp.float32, device=d) for s, d in start]
        theirs = [torch.zeros(s, device=d) for s, d in start]
        for name, one, other in steps:
            one, other = one % len(ours), other % len(ours)
            places = [one] if name in UNARY else [one, other]
            our_call, their_call = {**UNARY, **BINARY}[name]
            made = outcome(our_call, ours, places)
            wanted = outcome(their_call, theirs, places)
            if isinstance(made, Exception) or isinstance(wanted, Exception):
                devices = {canonical(ours[place].device) for place in places if ours[place].shape}
                devices |= {
                    ours[p].device for p in places if not ours[p].shape and ours[p].device != "cpu"
                }
                if len(devices) > 1:  # both refuse it
                    assert isinstance(made, Exception), (name, facts(wanted))
                    assert isinstance(wanted, Exception), (name, facts(made))
                    assert is_about_devices(made) or not is_about_devices(wanted), (made, wanted)
                continue
            assert is_fake(made)
            assert facts(made) == facts(wanted), name
            if made.dtype == np.float32:  # of truth values, the standard refuses more
                ours.append(made)
                theirs.append(wanted)


@pytest.mark.parametrize("read", [float, int, bool, lambda x: x.item()])
def test_both_refuse_to_read_elements(read):
    with FakeTensorMode(), theirs_module.FakeTensorMode():
        with pytest.raises(theirs_module.DataDependentOutputException):
            read(torch.ones(()))
        with pytest.raises(DataDependentOutputError):
            read(xp.ones(()))


def test_both_refuse_tensors_with_elements_unless_they_are_allowed():
    real, theirs = xp.asarray(np.ones(3)), torch.ones(3)
    with FakeTensorMode(), theirs_module.FakeTensorMode():
        with pytest.raises(AssertionError, match="allow_non_fake_inputs"):
            theirs + 1
        with pytest.raises(OpdispatchError, match="allow_non_fake_inputs"):
            real + 1
    with (
        FakeTensorMode(allow_non_fake_inputs=True),
        theirs_module.FakeTensorMode(allow_non_fake_inputs=True),
    ):
        assert tuple((theirs + 1).shape) == (real + 1).shape


def test_a_kernel_that_is_registered_again_covers_the_first():
    with Library("covered_fakes", "DEF") as ours:
        theirs = torch.library.Library("covered_fakes", "DEF")
        for library, register in ((ours, register_fake), (theirs, torch.library.register_fake)):
            library.define("f(Tensor x) -> Tensor")
            for by in (1, 2):
                register("covered_fakes::f", lambda x, by=by: x[by:], lib=library)
        with pytest.raises(DuplicateDefinitionError):
            register_fake("covered_fakes::f", lambda x: x, lib=ours, allow_override=False)
        with pytest.raises(RuntimeError, match="already has a fake impl"):
            torch.library.register_fake(
                "covered_fakes::f", lambda x: x, lib=theirs, allow_override=False
            )
        with FakeTensorMode(), theirs_module.FakeTensorMode():
            expected = tuple(torch.ops.covered_fakes.f(torch.ones(5)).shape)
            assert ops.covered_fakes.f(xp.ones(5)).shape == expected == (3,)

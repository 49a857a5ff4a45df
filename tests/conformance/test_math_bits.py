"""Conjugates and negatives that are not computed yet, beside PyTorch: values, bits and keys.

Random chains of views, parts, writes and calculations, of complex tensors and of their parts.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from opdispatch import Tensor
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")


def _write(x, y):
    x[0] = xp.sum(y)


def _write_theirs(x, y):
    x[0] = y.sum().to(x.dtype) if x.is_complex() else y.abs().sum()


def _write_real(x, y):
    if x.dtype.kind == "c":
        _write(x, y)
    else:
        x[0] = xp.sum(xp.abs(y))


# Of matrices of two rows and columns, complex or real, into such.
STEPS = {
    "conj": (lambda x, y: x.conj(), lambda x, y: x.conj()),
    "real": (lambda x, y: xp.real(x), lambda x, y: x.real),
    "imag": (
        lambda x, y: xp.imag(x) if x.dtype.kind == "c" else x,
        lambda x, y: x.imag if x.is_complex() else x,
    ),
    "neg view": (lambda x, y: x._neg_view(), lambda x, y: x._neg_view()),
    "resolve conj": (lambda x, y: x.resolve_conj(), lambda x, y: x.resolve_conj()),
    "resolve neg": (lambda x, y: x.resolve_neg(), lambda x, y: x.resolve_neg()),
    "mT": (lambda x, y: x.mT, lambda x, y: x.mT),
    "steps": (lambda x, y: x[:, None, :][:, 0], lambda x, y: x[:, None, :][:, 0]),
    "reshape": (lambda x, y: xp.reshape(x, (2, 2)), lambda x, y: x.reshape(2, 2)),
    "unbind": (
        lambda x, y: xp.stack(list(xp.unstack(x))),
        lambda x, y: torch.stack(list(x.unbind())),
    ),
    "add": (lambda x, y: x + y, lambda x, y: x + y),
    "negative": (lambda x, y: -x, lambda x, y: -x),
    "matmul": (lambda x, y: x @ x / 4, lambda x, y: x @ x / 4),
    "detach": (lambda x, y: x.detach(), lambda x, y: x.detach()),
    "write": (_write_real, _write_theirs),
}


ZERO_STEPS = {
    "mul": lambda z, y: z * y,
    "mul from the right": lambda z, y: y * z,
    "mul by a number": lambda z, y: z * 2,
    "add": lambda z, y: z + y,
    "add to itself": lambda z, y: z + z,
    "sub from itself": lambda z, y: z - z,
    "sub": lambda z, y: z - y,
    "div": lambda z, y: z / y,
    "div by itself": lambda z, y: (z + 1) / (z + 1) + z,
    "neg": lambda z, y: -z,
    "abs": lambda z, y: abs(z),
    "matmul": lambda z, y: z @ y,
    "row": lambda z, y: z[0],
    "slice": lambda z, y: z[1:],
    "mT": lambda z, y: z.mT,
    "conj": lambda z, y: z.conj(),
    "detach": lambda z, y: z.detach(),
}


@pytest.mark.parametrize("step", ZERO_STEPS)
def test_zeros_stay_without_elements_where_those_of_pytorch_do(step):
    y = np.array([[1.0, 2], [3, 4]])
    one = ZERO_STEPS[step](Tensor._efficientzerotensor((2, 2)), Tensor(y))
    other = ZERO_STEPS[step](
        torch._efficientzerotensor((2, 2), dtype=torch.float64), torch.from_numpy(y)
    )
    assert one._is_zerotensor() == other._is_zerotensor()
    keys = torch._C._dispatch_keys(other)
    assert one.key_set.has("ZeroTensor") == keys.has(torch._C.DispatchKey.ZeroTensor)
    np.testing.assert_array_equal(np.asarray(one), other.clone().numpy())


@settings(max_examples=40, deadline=None)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from([*STEPS, "conj", "imag", "write"]), *[st.integers(0, 9)] * 2),
        max_size=9,
    )
)
def test_values_bits_and_keys_are_those_of_pytorch(steps):
    start = np.array([[1 + 2j, -0.5j], [3 - 1j, 2]])
    ours, theirs = [Tensor(start.copy())], [torch.from_numpy(start.copy())]
    for name, one, other in steps:
        mine, its = STEPS[name]
        made = mine(ours[one % len(ours)], ours[other % len(ours)])
        expected = its(theirs[one % len(theirs)], theirs[other % len(theirs)])
        if made is not None:
            ours.append(made)
            theirs.append(expected)
    for one, other in zip(ours, theirs, strict=True):
        assert (one.is_conj(), one.is_neg()) == (other.is_conj(), other.is_neg())
        keys = torch._C._dispatch_keys(other)
        for key in ("Conjugate", "Negative"):
            assert one.key_set.has(key) == keys.has(getattr(torch._C.DispatchKey, key))
        np.testing.assert_allclose(np.asarray(one), other.resolve_conj().resolve_neg().numpy())

"""Conversions of Python values to types, as arguments and as results, compared with PyTorch.

``DIFFERENT`` has the pairs of which docs/fidelity.md says that they differ on purpose.
"""

import collections
import enum
import fractions
from types import SimpleNamespace

import numpy as np
import pytest

import opdispatch
from opdispatch import ArgumentError, ReturnError, Tensor

torch = pytest.importorskip("torch")


class Numbers(collections.abc.Sequence):
    """A sequence that is no list."""

    def __init__(self, *items):
        self.items = items

    def __getitem__(self, place):
        return self.items[place]

    def __len__(self):
        return len(self.items)


class One(enum.IntEnum):
    ONE = 1


OURS = SimpleNamespace(
    refused=(ArgumentError, ReturnError),
    tensor=lambda *args: Tensor(np.array(*args)),
    library=opdispatch.Library("conversions", "FRAGMENT"),
    ops=opdispatch.ops,
)
THEIRS = SimpleNamespace(
    refused=(RuntimeError, TypeError, OverflowError),
    tensor=torch.tensor,
    library=torch.library.Library("conversions", "FRAGMENT"),
    ops=torch.ops,
)
SIDES = {"ours": OURS, "theirs": THEIRS}

VALUES = {
    "0": lambda side: 0,
    "1": lambda side: 1,
    "2": lambda side: 2,
    "True": lambda side: True,
    "1.0": lambda side: 1.0,
    "1.5": lambda side: 1.5,
    "1j": lambda side: 1j,
    "None": lambda side: None,
    "text": lambda side: "a",
    "bytes": lambda side: b"ab",
    "enum": lambda side: One.ONE,
    "fraction": lambda side: fractions.Fraction(1, 2),
    "np.int64": lambda side: np.int64(3),
    "np.float32 2.0": lambda side: np.float32(2.0),
    "np.float32 1.5": lambda side: np.float32(1.5),
    "np.bool": lambda side: np.bool_(True),
    "tensor 3": lambda side: side.tensor(3),
    "tensor [3]": lambda side: side.tensor([3]),
    "tensor [[3]]": lambda side: side.tensor([[3]]),
    "tensor [3, 4]": lambda side: side.tensor([3, 4]),
    "tensor 1.5": lambda side: side.tensor(1.5),
    "tensor [2.0]": lambda side: side.tensor([2.0]),
    "tensor True": lambda side: side.tensor(True),
    "[]": lambda side: [],
    "[1, 2]": lambda side: [1, 2],
    "(1, 2)": lambda side: (1, 2),
    "[1.5]": lambda side: [1.5],
    "[True]": lambda side: [True],
    "range": lambda side: range(2),
    "deque": lambda side: collections.deque([1, 2]),
    "sequence": lambda side: Numbers(1, 2),
    "UserList": lambda side: collections.UserList([1, 2]),
    "set": lambda side: {1, 2},
    "dict": lambda side: {1: 2},
    "tensors": lambda side: [side.tensor([1.0])],
    "deque of tensors": lambda side: collections.deque([side.tensor([1.0])]),
    "sequence of tensors": lambda side: Numbers(side.tensor([1.0])),
}
TYPES = [
    *("bool", "int", "SymInt", "float", "complex", "Scalar", "str", "Tensor", "bool?", "int?"),
    *("int[]", "float[]", "bool[]", "Scalar[]", "complex[]", "SymInt[]", "Tensor[]", "Tensor?[]"),
    *("str[]", "int[]?", "float?", "Tensor?"),
]
OF_FLOATS = {"fraction", "np.float32 2.0", "np.float32 1.5", "tensor 1.5", "tensor [2.0]"}
NO_LISTS = {"set", "dict", "bytes", "text", "tensor [3]", "tensor [[3]]", "tensor [3, 4]"}
NO_LISTS |= {"tensor [2.0]", "tensor 3"}
OF_TENSORS = {"tensors", "deque of tensors", "sequence of tensors"}
NUMPY = {"np.int64", "np.float32 2.0", "np.float32 1.5", "np.bool"}
DIFFERENT = {
    "bool": OF_FLOATS | {"1.0", "1.5", "1j", "None", "range"},
    "int": OF_FLOATS,
    "SymInt": OF_FLOATS,
    "Scalar": NUMPY,
    "str": {"bytes"},
    "Tensor": {"None", *NUMPY},
    "bool[]": NO_LISTS | OF_TENSORS | {"[1.5]"},
    "int[]": NO_LISTS | OF_TENSORS,
    "int[]?": NO_LISTS | OF_TENSORS,
    # PyTorch takes lists, tuples and ranges of ints, and no other sequence.
    "SymInt[]": NO_LISTS | OF_TENSORS | {"deque", "sequence"},
}
for kind in TYPES:
    if kind.endswith(("[]", "[]?")):
        DIFFERENT.setdefault(kind, NO_LISTS)
    elif kind.endswith("?"):
        DIFFERENT.setdefault(kind, DIFFERENT.get(kind[:-1], set()) - {"None"})


def plain(value):
    if isinstance(value, Tensor | torch.Tensor):
        return "tensor", np.asarray(value).tolist()
    if isinstance(value, list | tuple):
        return type(value).__name__, [plain(each) for each in value]
    return type(value).__name__, value


def as_argument(side, kind, name, value):
    got = []

    def kernel(value, other):
        got.append(value)
        return +other

    side.library.define(f"{name}({kind} value, Tensor other) -> Tensor")
    side.library.impl(name, kernel, "CPU")
    getattr(side.ops.conversions, name)(value, side.tensor([1.0]))
    return got[0]


def as_result(side, kind, name, value):
    side.library.define(f"{name}(Tensor x) -> {kind}")
    side.library.impl(name, lambda x: value, "CPU")
    return getattr(side.ops.conversions, name)(side.tensor([1.0]))


def outcome(side, way, kind, name, value):
    try:
        return plain(way(side, kind, name, value))
    except side.refused:
        return "refused"


@pytest.mark.parametrize("way", [as_argument, as_result])
@pytest.mark.parametrize("kind", TYPES)
def test_values_are_converted_as_in_pytorch(kind, way):
    differing = {}
    for number, (name, make) in enumerate(VALUES.items()):
        if name in DIFFERENT.get(kind, ()):
            continue
        operator = f"{way.__name__}_{TYPES.index(kind)}_{number}"
        ours = outcome(OURS, way, kind, operator, make(OURS))
        theirs = outcome(THEIRS, way, kind, operator, make(THEIRS))
        if ours != theirs:
            differing[name] = ours, theirs
    assert not differing

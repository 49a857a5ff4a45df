"""Which overload a call by name means, beside PyTorch: of overloads that are defined in any order.

The one without a name is defined first, if there is one: elsewhere the order differs on purpose,
see docs/fidelity.md. Types are those for which both take the same values.
"""

import random
from collections import deque
from types import SimpleNamespace

import numpy as np
import pytest
from golden_file import seeds

import opdispatch
from opdispatch import ArgumentError, Tensor

torch = pytest.importorskip("torch")

TYPES = ["Tensor", "Tensor?", "int", "float", "Scalar", "str", "int?", "Tensor[]", "int[]"]
VALUES = ["tensor", 1, 2.5, "text", [1, 2], "tensors"]
# PyTorch takes the truth of 2.5 and of a range for a bool: see docs/fidelity.md.
BOOLS = [*TYPES, "bool", "bool?", "bool"], [1, True, "tensor", "text", [1, 2]]
SEQUENCES = TYPES, [*VALUES, range(2), deque([1, 2])]

OURS = SimpleNamespace(
    refused=ArgumentError,
    tensor=Tensor(np.ones(3)),
    library=opdispatch.Library,
    ops=opdispatch.ops,
    kept=[],
)
THEIRS = SimpleNamespace(
    refused=RuntimeError,
    tensor=torch.ones(3),
    library=torch.library.Library,
    ops=torch.ops,
    kept=[],  # what it has registered goes with a library that is forgotten
)


def random_signature(rng, types):
    types = [rng.choice(types) for _ in range(rng.randrange(3))]
    names = [f"{kind} x{place}" for place, kind in enumerate(types)]
    if names and rng.random() < 0.2:
        names[-1] += "=None" if types[-1].endswith("?") else ""
    return ", ".join(names)


def run(side, seed, types, values, title):
    rng, namespace = random.Random(seed), f"overloads_{title}_{seed}"
    chosen = []
    names = rng.sample(["a", "b", "c", "d", "e"], rng.randrange(2, 6))
    for name in ([""] if rng.random() < 0.5 else []) + names:
        library = side.library(namespace, "FRAGMENT")
        side.kept.append(library)
        overload, signature = f"f.{name}".removesuffix("."), random_signature(rng, types)
        library.define(f"{overload}({signature}) -> str")
        library.impl(overload, lambda *args, n=name: n, "CompositeImplicitAutograd")
        chosen.append((name, signature))
    known = {"tensor": side.tensor, "tensors": [side.tensor, side.tensor]}
    for _ in range(30):
        call = [rng.choice(values) for _ in range(rng.randrange(3))]
        args = [known.get(each, each) if isinstance(each, str) else each for each in call]
        try:
            chosen.append((call, getattr(side.ops, namespace).f(*args)))
        except side.refused:
            chosen.append((call, "refused"))
    return chosen


@pytest.mark.parametrize("seed", seeds(200))
def test_the_overload_that_is_called_is_that_of_pytorch(seed):
    assert run(OURS, seed, TYPES, VALUES, "any") == run(THEIRS, seed, TYPES, VALUES, "any")


@pytest.mark.parametrize("seed", seeds(100))
def test_a_bool_takes_an_int_among_overloads_as_in_pytorch(seed):
    assert run(OURS, seed, *BOOLS, "bools") == run(THEIRS, seed, *BOOLS, "bools")


@pytest.mark.parametrize("seed", seeds(100))
def test_sequences_are_lists_among_overloads_as_in_pytorch(seed):
    assert run(OURS, seed, *SEQUENCES, "lists") == run(THEIRS, seed, *SEQUENCES, "lists")

"""Classes of tensors beside PyTorch's: what a handler is asked, and what is left to its base."""

import copy
import random
from types import SimpleNamespace

import numpy as np
import pytest
from golden_file import seeds

import opdispatch
from opdispatch import Tensor
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")

OURS = SimpleNamespace(
    Tensor=Tensor,
    tensor=lambda *numbers: Tensor(np.array(numbers, dtype=float)),
    no_grad=opdispatch.no_grad,
    inference=opdispatch.inference_mode,
    sum=xp.sum,
    exp=xp.exp,
    reshape=xp.reshape,
    unbind=xp.unstack,
    name=lambda func: {"multiply": "mul", "negative": "neg"}.get(func._opname, func._opname),
    numbers=lambda x: np.asarray(x.detach().array).tolist(),
)
THEIRS = SimpleNamespace(
    Tensor=torch.Tensor,
    tensor=lambda *numbers: torch.tensor(numbers, dtype=torch.float64),
    no_grad=torch.no_grad,
    inference=torch.inference_mode,
    sum=torch.sum,
    exp=torch.exp,
    reshape=torch.reshape,
    unbind=torch.unbind,
    name=lambda func: func._opname,
    numbers=lambda x: x.detach().tolist(),
)

VIEWS = [
    lambda side, x: x[1:],
    lambda side, x: x[:1],
    lambda side, x: side.reshape(x, (-1,)),
    lambda side, x: side.unbind(x)[0][None] if x.shape[0] else x * 1,
    lambda side, x: x.detach(),
    lambda side, x: x * 1,
    lambda side, x: copy.copy(x) if not x.requires_grad else x,
]


def bases(side, seed):
    """Return, for each of a chain of views, which of them is its base."""
    rng = random.Random(seed)
    x = side.tensor(1.0, 2.0, 3.0, 4.0).requires_grad_(rng.random() < 0.5)
    made, found = [x], []
    for _ in range(6):
        mode = rng.choice([side.no_grad, side.no_grad, None, None])
        given, view = rng.choice(made), rng.choice(VIEWS)
        if mode is None:
            result = view(side, given)
        else:
            with mode():
                result = view(side, given)
        made.append(result)
        place = next((n for n, each in enumerate(made) if each is result._base), None)
        found.append((place, result._is_view(), result.requires_grad))
    return found


@pytest.mark.parametrize("seed", seeds(60))
def test_views_have_the_bases_of_pytorchs(seed):
    assert bases(OURS, seed) == bases(THEIRS, seed)


def handled(side, seed):
    """Return what a handler that leaves all to its base is asked, and what comes of it."""
    rng, asked = random.Random(seed), []

    class Noting(side.Tensor):
        @staticmethod
        def __new__(cls, x):
            return side.Tensor._make_subclass(cls, x, x.requires_grad)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            result = super().__torch_dispatch__(func, types, args, kwargs)
            asked.append((side.name(func), [each.__name__ for each in types], result.requires_grad))
            return result

    x = Noting(side.tensor(1.0, 2.0).requires_grad_(rng.random() < 0.5))
    others = [x, side.tensor(3.0, 4.0).requires_grad_(rng.random() < 0.5)]
    results = []
    for _ in range(4):
        one, two = rng.choice(others), rng.choice(others)
        step = rng.choice([lambda a, b: a * b, lambda a, b: -a, lambda a, b: side.exp(a)])
        result = step(one, two)
        results.append((type(result).__name__, result.requires_grad, side.numbers(result)))
        others.append(result)
    return asked, results


@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning")
@pytest.mark.parametrize("seed", seeds(40))
def test_delegation_to_the_base_class_is_as_in_pytorch(seed):
    assert handled(OURS, seed) == handled(THEIRS, seed)

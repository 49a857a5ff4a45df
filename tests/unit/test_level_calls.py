"""The cost of a call within transforms, in Python functions entered: time is too noisy."""

import sys

import numpy as np
import pytest

from opdispatch import Tensor, func
from opdispatch import array_api as xp

RNG = np.random.default_rng(0)
W, X, T = (Tensor(RNG.normal(size=shape)) for shape in ((4, 4), (4,), (4,)))
OPERATORS = 3
"""In each layer."""


def layers(number):
    def function(x):
        for _ in range(number):
            x = xp.tanh(W @ x) + x
        return x

    return function


def functions_entered(call):
    """Return how many Python functions a call enters that has been made before."""
    entered = 0

    def note(frame, event, argument):
        nonlocal entered
        entered += event == "call"

    for _ in range(2):
        call()
    outer = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(outer)
    return entered


@pytest.mark.parametrize(
    ("transform", "most"),
    [
        (lambda f: func.vmap(f)(xp.stack([X, T])), 27),
        (lambda f: func.jvp(f, (X,), (T,)), 34),
        (lambda f: func.jacfwd(f)(X), 57),
        (lambda f: func.jacfwd(func.jacfwd(f))(X), 240),
        (lambda f: func.hessian(lambda x: xp.sum(f(x)))(X), 300),
    ],
    ids=["vmap", "jvp", "jacfwd", "jacfwd of jacfwd", "hessian"],
)
def test_an_operator_enters_few_functions_at_the_levels_of_transforms(transform, most):
    fewer, more = (functions_entered(lambda n=n: transform(layers(n))) for n in (2, 3))
    assert (more - fewer) / OPERATORS <= most

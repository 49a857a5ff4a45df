"""All transforms, nested at random, beside those of ``torch.func``, where PyTorch is installed.

At ordinary points, and at special ones: zeros, ties, infinities, NaN, equal eigenvalues, matrices
without full rank and without elements. Where PyTorch's derivative is NaN, it may exist here. Where
its values are roundings, ours may be others: see docs/fidelity.md.
"""

from typing import Any

import numpy as np
import pytest
from golden_file import SCALE, SEED

pytest.importorskip("torch")
from array_programs import OF_SIGNS, Case, drawn, tolerance
from array_sides import SIDES

# torch.func.jvp compiles rules of its own when it first meets their operator.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.torch.jit.script.:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),  # of NumPy, about infinities and NaN
    pytest.mark.filterwarnings("ignore::UserWarning"),  # of PyTorch, about slow batches
]
PROGRAMS = 40
"""How many there are in each test, times the scale."""
REFUSED_HERE = (
    "has no imaginary parts",
    "there is an infinity or NaN among the elements",
    "Eigenvalues did not converge",  # of a matrix that is not finite
)
"""Messages of refusals where PyTorch warns, or returns NaN: see docs/fidelity.md."""


def differing(got: np.ndarray, want: np.ndarray, doubt: Any = 0.0) -> np.ndarray:
    """Return where the difference is more than a tolerance, and more than PyTorch's own doubt."""
    most = tolerance(want.dtype)
    close = np.isclose(got, want, rtol=most, atol=most, equal_nan=True)
    with np.errstate(invalid="ignore"):
        return ~(close | (abs(got - want) <= 10 * doubt) | (doubt == np.inf))


def compare(case: Case, want: np.ndarray) -> None:
    """Assert that a case has PyTorch's result wherever that means something."""
    got = case.run(SIDES[0])
    assert got.shape == want.shape
    if want.dtype.kind == "c":
        compared = np.isfinite(want)
    else:
        compared = ~np.isnan(want) | (not case.is_differentiated)
    if not OF_SIGNS.isdisjoint(name for name, _ in case.steps):
        compared &= ~np.isnan(got)
    differs = compared & differing(got, want)
    if differs.any():
        doubt = case.uncertainty(want)
        differs &= differing(got, want, doubt)
        if differs.any():
            # Ours has other roundings, and so other ties: at most points nearby, it must agree.
            nearby = [differing(each.run(SIDES[0]), want, doubt) for each in case.rounded()]
            differs &= np.mean(nearby, axis=0) > 0.5
    assert not differs.any(), f"{got[differs]} instead of {want[differs]}"


@pytest.mark.parametrize("is_special", [False, True])
@pytest.mark.parametrize("part", range(4))
def test_nested_transforms_agree_with_torch_at_ordinary_and_special_points(part, is_special):
    rng = np.random.default_rng([SEED, part, is_special])
    compared = 0
    for _ in range(PROGRAMS * SCALE):
        case = drawn(rng, is_special)
        try:
            want = case.run(SIDES[1])
        except (RuntimeError, NotImplementedError, IndexError):
            continue  # there are nestings that PyTorch has no formulas for
        try:
            compare(case, want)
        except Exception as error:
            if any(refusal in str(error) for refusal in REFUSED_HERE):
                continue
            error.add_note(f"{case}, with the seed {SEED}")
            raise
        compared += 1
    assert compared >= 0.8 * PROGRAMS * SCALE

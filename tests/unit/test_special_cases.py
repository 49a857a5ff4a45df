"""Infinities, NaN and signed zeros: ``opdispatch.array_api`` gives what the standard lists.

https://data-apis.org/array-api/2024.12/API_specification/elementwise_functions.html
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from opdispatch import array_api as xp

NAN, INF = math.nan, math.inf

# -- two real numbers: Python's own floats have the standard's results -----------------------------


def divide(a: float, b: float) -> float:
    try:
        return a / b
    except ZeroDivisionError:
        return NAN if a == 0 or math.isnan(a) else math.copysign(INF, a) * math.copysign(1, b)


def floor_divide(a: float, b: float) -> float:
    """With an infinity, floor(a / b), which Python's is not."""
    if not b or math.isinf(a) or math.isinf(b):
        quotient = divide(a, b)
        return quotient if quotient == 0 or not math.isfinite(quotient) else math.floor(quotient)
    return a // b


def remainder(a: float, b: float) -> float:
    return a % b if b else NAN


def power(a: float, b: float) -> float:
    is_odd = b % 2 == 1
    try:
        return math.pow(a, b)
    except OverflowError:
        return -INF if a < 0 and is_odd else INF
    except ValueError:  # C has a result, and sets a flag
        return NAN if a else math.copysign(INF, a) if is_odd else INF


def logaddexp(a: float, b: float) -> float:
    if math.isnan(a + b) and not (math.isinf(a) and math.isinf(b)):
        return NAN
    top, low = max(a, b), min(a, b)
    return top if math.isinf(top) else top + math.log1p(math.exp(low - top))


BINARY: dict[str, Callable[[float, float], float]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": divide,
    "floor_divide": floor_divide,
    "remainder": remainder,
    "pow": power,
    "atan2": math.atan2,
    "hypot": math.hypot,
    "copysign": math.copysign,
    "nextafter": math.nextafter,
    "logaddexp": logaddexp,
    "maximum": lambda a, b: NAN if math.isnan(a) or math.isnan(b) else max(a, b),
    "minimum": lambda a, b: NAN if math.isnan(a) or math.isnan(b) else min(a, b),
    "equal": operator.eq,
    "not_equal": operator.ne,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
}
OPERATORS = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
    "floor_divide": operator.floordiv,
    "remainder": operator.mod,
    "pow": operator.pow,
}
IN_PLACE = {
    "add": operator.iadd,
    "subtract": operator.isub,
    "multiply": operator.imul,
    "divide": operator.itruediv,
    "floor_divide": operator.ifloordiv,
    "remainder": operator.imod,
    "pow": operator.ipow,
}
# Not the exponent 0.5: NumPy takes the square root for it, and has -0.0 of -0.0.
REALS = [
    NAN,
    INF,
    -INF,
    0.0,
    -0.0,
    1.0,
    -1.0,
    2.5,
    -2.5,
    3.0,
    -3.0,
    0.25,
    2.0,
    1e300,
    -1e300,
    5e-324,
]


def is_same(found: float, expected: float) -> bool:
    """The sign of zeros is looked at, that of NaN is not."""
    if math.isnan(expected):
        return math.isnan(found)
    if expected == 0 or math.isinf(expected):
        return found == expected and math.copysign(1, found) == math.copysign(1, expected)
    return math.isclose(found, expected, rel_tol=1e-12)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", BINARY)
def test_two_real_numbers(name: str):
    ways = [getattr(xp, name), *(way[name] for way in (OPERATORS, IN_PLACE) if name in way)]
    for a, b in itertools.product(REALS, REALS):
        if name in ("maximum", "minimum") and a == b == 0:
            continue  # which of the zeros it is, is up to libraries
        expected = float(BINARY[name](a, b))
        for way in ways:
            assert is_same(float(way(xp.asarray(a), xp.asarray(b))), expected), (way, a, b)
        for x, y in ((a, xp.asarray(b)), (xp.asarray(a), b)):
            assert is_same(float(ways[0](x, y)), expected), (a, b)


# -- one number ------------------------------------------------------------------------------------

# a > result, of real numbers.
REAL = """
abs: nan>nan -0>0 -inf>inf
acos: nan>nan 1.5>nan -1.5>nan 1>0
acosh: nan>nan 0.5>nan 1>0 inf>inf
asin: nan>nan 1.5>nan -1.5>nan 0>0 -0>-0
asinh: nan>nan 0>0 -0>-0 inf>inf -inf>-inf
atan: nan>nan 0>0 -0>-0 inf>pi/2 -inf>-pi/2
atanh: nan>nan -1.5>nan 1.5>nan -1>-inf 1>inf 0>0 -0>-0
ceil: 3>3 inf>inf -inf>-inf 0>0 -0>-0 nan>nan -0.5>-0
cos: nan>nan 0>1 -0>1 inf>nan -inf>nan
cosh: nan>nan 0>1 -0>1 inf>inf -inf>inf
exp: nan>nan 0>1 -0>1 inf>inf -inf>0
expm1: nan>nan 0>0 -0>-0 inf>inf -inf>-1
floor: 3>3 inf>inf -inf>-inf 0>0 -0>-0 nan>nan
isfinite: inf>0 -inf>0 nan>0 1.5>1
isinf: inf>1 -inf>1 nan>0 1.5>0
isnan: inf>0 -inf>0 nan>1 1.5>0
log: nan>nan -1>nan 0>-inf -0>-inf 1>0 inf>inf
log10: nan>nan -1>nan 0>-inf -0>-inf 1>0 inf>inf
log1p: nan>nan -1.5>nan -1>-inf -0>-0 0>0 inf>inf
log2: nan>nan -1>nan 0>-inf -0>-inf 1>0 inf>inf
negative: nan>nan 0>-0 -0>0 inf>-inf
reciprocal: nan>nan 0>inf -0>-inf inf>0 -inf>-0
round: 3>3 inf>inf -inf>-inf 0>0 -0>-0 nan>nan 0.5>0 1.5>2 2.5>2 -2.5>-2 -0.5>-0
sign: -2.5>-1 0>0 2.5>1 nan>nan
signbit: 0>0 -0>1 inf>0 -inf>1 2.5>0 -2.5>1
sin: nan>nan 0>0 -0>-0 inf>nan -inf>nan
sinh: nan>nan 0>0 -0>-0 inf>inf -inf>-inf
sqrt: nan>nan -1>nan 0>0 -0>-0 inf>inf
square: nan>nan 0>0 -0>0 -inf>inf
tan: nan>nan 0>0 -0>-0 inf>nan -inf>nan
tanh: nan>nan 0>0 -0>-0 inf>1 -inf>-1
trunc: 3>3 inf>inf -inf>-inf 0>0 -0>-0 nan>nan -0.5>-0
"""

# real imaginary > real imaginary. f is any finite number, n one that is not zero, p a positive one;
# ~ is before what may have either sign.
COMPLEX = """
acos: 0 0>pi/2 -0; -0 0>pi/2 -0; 0 nan>pi/2 nan; -0 nan>pi/2 nan; f inf>pi/2 -inf; n nan>nan nan;
    -inf p>pi -inf; inf p>0 -inf; -inf inf>3pi/4 -inf; inf inf>pi/4 -inf; inf nan>nan ~inf;
    -inf nan>nan ~inf; nan f>nan nan; nan inf>nan -inf; nan nan>nan nan
acosh: 0 0>0 pi/2; -0 0>0 pi/2; f inf>inf pi/2; n nan>nan nan; 0 nan>nan ~pi/2; -inf p>inf pi;
    inf p>inf 0; -inf inf>inf 3pi/4; inf inf>inf pi/4; inf nan>inf nan; -inf nan>inf nan;
    nan f>nan nan; nan inf>inf nan; nan nan>nan nan
asinh: 0 0>0 0; p inf>inf pi/2; f nan>nan nan; inf p>inf 0; inf inf>inf pi/4; nan 0>nan 0;
    nan n>nan nan; nan inf>~inf nan; nan nan>nan nan
atanh: 0 0>0 0; 0 nan>0 nan; 1 0>inf 0; p inf>0 pi/2; n nan>nan nan; inf p>0 pi/2; inf inf>0 pi/2;
    inf nan>0 nan; nan f>nan nan; nan inf>~0 pi/2; nan nan>nan nan
cosh: 0 0>1 0; 0 inf>nan ~0; 0 nan>nan ~0; n inf>nan nan; n nan>nan nan; inf 0>inf 0;
    inf inf>~inf nan; inf nan>inf nan; nan 0>nan ~0; nan -0>nan ~0; nan n>nan nan; nan nan>nan nan
exp: 0 0>1 0; -0 0>1 0; f inf>nan nan; f nan>nan nan; inf 0>inf 0; -inf inf>~0 ~0;
    inf inf>~inf nan; -inf nan>~0 ~0; inf nan>~inf nan; nan 0>nan 0; nan n>nan nan; nan inf>nan nan;
    nan nan>nan nan
expm1: 0 0>0 0; -0 0>0 0; 0 -0>0 -0; -0 -0>0 -0; f inf>nan nan; f nan>nan nan; inf 0>inf 0;
    -inf inf>-1 ~0; inf inf>~inf nan; -inf nan>-1 ~0; inf nan>~inf nan; nan 0>nan 0; nan n>nan nan;
    nan inf>nan nan; nan nan>nan nan
log: -0 0>-inf pi; 0 0>-inf 0; f inf>inf pi/2; f nan>nan nan; -inf p>inf pi; inf p>inf 0;
    -inf inf>inf 3pi/4; inf inf>inf pi/4; inf nan>inf nan; -inf nan>inf nan; nan f>nan nan;
    nan inf>inf nan; nan nan>nan nan
log1p: -1 0>-inf 0; f inf>inf pi/2; f nan>nan nan; -inf p>inf pi; inf p>inf 0;
    -inf inf>inf 3pi/4; inf inf>inf pi/4; inf nan>inf nan; -inf nan>inf nan; nan f>nan nan;
    nan inf>inf nan; nan nan>nan nan
sign: 0 0>0 0; -0 -0>~0 ~0; nan n>nan nan; n nan>nan nan
sinh: 0 0>0 0; 0 inf>~0 nan; 0 nan>~0 nan; p inf>nan nan; p nan>nan nan; inf 0>inf 0;
    inf inf>~inf nan; inf nan>~inf nan; nan 0>nan 0; nan n>nan nan; nan nan>nan nan
sqrt: 0 0>0 0; -0 0>0 0; f inf>inf inf; nan inf>inf inf; inf inf>inf inf; f nan>nan nan;
    -inf p>0 inf; inf p>inf 0; -inf nan>nan ~inf; inf nan>inf nan; nan f>nan nan; nan nan>nan nan
tanh: 0 0>0 0; n inf>nan nan; n nan>nan nan; inf p>1 ~0; inf inf>1 ~0; inf nan>1 ~0; nan 0>nan 0;
    nan n>nan nan; nan nan>nan nan
"""
KINDS = {
    "f": [-2.5, -1.0, -0.0, 0.0, 0.25, 7.0],
    "n": [-2.5, -1.0, 0.25, 7.0],
    "p": [0.25, 1.0, 2.0, 7.0],
}


def values(text: str) -> list[float]:
    return KINDS[text] if text in KINDS else [float(text)]


def number(text: str) -> float:
    whole, _, part = text.partition("/")
    if not whole.endswith("pi"):
        return float(text)
    factor = whole.removesuffix("pi")
    return (
        (float(f"{factor}1") if factor in ("", "-") else float(factor)) * math.pi / int(part or 1)
    )


def fits(found: float, text: str) -> bool:
    if text.startswith("~"):
        found = abs(found)
    return is_same(found, number(text.removeprefix("~")))


def cases(listed: str, separator: str) -> Iterator[tuple[str, str, str]]:
    for line in listed.replace("\n    ", " ").strip().splitlines():
        name, _, rest = line.partition(": ")
        for case in rest.split(separator):
            given, _, expected = case.strip().partition(">")
            yield name, given, expected


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "given", "expected"), [*cases(REAL, " ")], ids=str)
def test_one_real_number(name: str, given: str, expected: str):
    for dtype in (xp.float64, xp.float32):
        found = float(getattr(xp, name)(xp.asarray(float(given), dtype=dtype)))
        if "pi" in expected:
            assert math.isclose(found, number(expected), rel_tol=1e-6)
        else:
            assert fits(found, expected)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(("name", "given", "expected"), [*cases(COMPLEX, ";")], ids=str)
def test_one_complex_number(name: str, given: str, expected: str):
    if (name, given) == ("acosh", "0 nan") and np.lib.NumpyVersion(np.__version__) < "2.3.0":
        pytest.skip("NumPy before 2.3 has no angle for it")
    real, imaginary = expected.split()
    for a, b in itertools.product(*map(values, given.split())):
        z = complex(getattr(xp, name)(xp.asarray(complex(a, b))))
        assert fits(z.real, real), (a, b, z)
        assert fits(z.imag, imaginary), (a, b, z)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", ["exp", "expm1", "cosh", "sinh"])
def test_infinite_numbers_keep_their_angle(name: str):
    less = 1.0 if name == "expm1" else 0.0
    for b in KINDS["n"]:
        cis = complex(math.cos(b), math.sin(b))
        z = complex(getattr(xp, name)(xp.asarray(complex(INF, b))))
        assert is_same(z.real, INF * cis.real)
        assert is_same(z.imag, INF * cis.imag)
        if name.startswith("exp"):
            z = complex(getattr(xp, name)(xp.asarray(complex(-INF, b))))
            assert is_same(z.real, 0.0 * cis.real - less)
            assert is_same(z.imag, 0.0 * cis.imag)


@pytest.mark.parametrize("b", [0.25, 1.0, 2.0, 3.0, -1.0, -2.0])
def test_the_hyperbolic_tangent_of_infinity_has_the_sign_of_the_angle(b: float):
    """As in C; the standard has 1 + 0j."""
    z = complex(xp.tanh(xp.asarray(complex(INF, b))))
    assert z == 1
    assert math.copysign(1, z.imag) == math.copysign(1, math.sin(2 * b))


def test_complex_numbers_are_finite_if_both_parts_are():
    for a, b in itertools.product(REALS, REALS):
        z = xp.asarray(complex(a, b))
        assert bool(xp.isfinite(z)) is (math.isfinite(a) and math.isfinite(b))
        assert bool(xp.isinf(z)) is (math.isinf(a) or math.isinf(b))
        assert bool(xp.isnan(z)) is (math.isnan(a) or math.isnan(b))


def test_the_magnitude_of_complex_numbers_is_their_hypotenuse():
    for a, b in itertools.product(REALS, REALS):
        if max(abs(a), abs(b)) != 1e300:  # two of these are too large together
            assert is_same(float(xp.abs(xp.asarray(complex(a, b)))), math.hypot(a, b))


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_infinite_elements_leave_the_others_as_they_are():
    z = np.array([1e-12 + 1e-12j, complex(INF, 0), 0.5j])
    result = xp.expm1(xp.asarray(z)).array
    np.testing.assert_array_equal(result[[0, 2]], np.expm1(z[[0, 2]]))
    assert result[1] == complex(INF, 0)
    assert xp.expm1(xp.asarray(z, dtype=xp.complex64)).dtype == xp.complex64


# -- arrays of them --------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_empty_array_has_sum_zero_and_mean_nan():
    none = xp.zeros(0)
    assert [float(xp.sum(none)), float(xp.prod(none))] == [0.0, 1.0]
    for name in ("mean", "std", "var"):
        assert math.isnan(float(getattr(xp, name)(none)))


@pytest.mark.parametrize("name", ["max", "mean", "min", "prod", "std", "sum", "var"])
def test_one_nan_makes_the_whole_nan(name: str):
    assert math.isnan(float(getattr(xp, name)(xp.asarray([[1.0, 2.0], [NAN, 3.0]]))))


def test_each_nan_is_another_value():
    x = xp.asarray([NAN, 1.0, NAN, 1.0])
    assert xp.unique_counts(x).counts.array.tolist() == [2, 1, 1]
    assert xp.unique_values(x).shape == (3,)
    assert xp.unique_all(x).counts.shape == xp.unique_inverse(x).values.shape == (3,)


def test_limits_that_are_nan_clip_to_nan():
    x = xp.asarray([1.0, NAN, 3.0])
    assert np.isnan(xp.clip(x, NAN, 2.0).array).all()
    assert np.isnan(xp.clip(x, xp.asarray([0.0, 0.0, NAN]), 2.0).array).tolist() == [
        False,
        True,
        True,
    ]

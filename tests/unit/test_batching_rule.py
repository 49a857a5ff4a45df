"""Every operator of the library ``array`` under vmap, beside a loop over the samples."""

import itertools
import random
import warnings

import numpy as np
import pytest

from opdispatch import BatchingFallbackWarning, Tensor, TransformError, vmap
from opdispatch.array_api.operators import OPERATORS
from opdispatch.native.array.batching import BY_ELEMENTS, DECOMPOSITIONS, RULES
from tests.unit.test_array_meta import CALLS, Of

BATCH = 2
OF_INTEGERS = ("bitwise_",)
OF_BOOLEANS = ("logical_not", "logical_and", "logical_or", "logical_xor")
# Where NumPy refuses a number that it takes for a vector elsewhere, and the other way round.
LENIENT = ("argsort", "cumulative_prod", "cumulative_sum", "linalg_pinv.Tensor", "take")


def operator_of(name):
    packet, _, overload = name.partition(".")
    return getattr(getattr(OPERATORS, packet), overload or "default")


def slots_of(values):
    """The arrays of a call, in order."""
    found = []
    for value in values:
        found += slots_of(value) if isinstance(value, list) else [value]
    return [each for each in found if isinstance(each, Of)]


def filled(value, arrays):
    if isinstance(value, list):
        return [filled(each, arrays) for each in value]
    return next(arrays) if isinstance(value, Of) else value


def make(rng, slot, name, batched):
    """An array, with a batch in front."""
    shape = ((BATCH,) if batched else ()) + slot.shape
    if slot.dtype == "bool" or name.startswith(OF_BOOLEANS):
        return rng.integers(0, 2, shape).astype(bool)
    if slot.dtype in ("int64", "uint16", "int8"):
        return rng.integers(0, 2, shape).astype(slot.dtype)
    if name.startswith(OF_INTEGERS):
        return rng.integers(0, 5, shape)
    numbers = rng.uniform(0.2, 0.9, shape)
    if name == "searchsorted" and numbers.ndim:
        return np.sort(numbers, axis=-1)
    if name == "linalg_cholesky" and numbers.ndim > 1 and shape[-1] == shape[-2]:
        return numbers @ np.swapaxes(numbers, -1, -2) + 3 * np.eye(shape[-1])
    return numbers.astype(slot.dtype) if isinstance(slot.dtype, str) else numbers


def outcome(function):
    """Arrays, or None if the call was refused."""
    try:
        return [np.asarray(each) for each in function()]
    except (TypeError, ValueError, IndexError, ZeroDivisionError, np.linalg.LinAlgError):
        return None


def beside_loop(name, function, arrays, in_dims):
    """Return the results of vmap and of a loop, or None where they are refused."""
    tensors = [Tensor(each) for each in arrays]

    def loop():
        samples = [
            function(*[t if dim is None else t[n] for t, dim in zip(tensors, in_dims, strict=True)])
            for n in range(BATCH)
        ]
        columns = zip(*samples, strict=True)
        return [np.stack([np.asarray(each) for each in column]) for column in columns]

    given = vmap(function, in_dims=tuple(in_dims))
    return outcome(lambda: given(*tensors)), outcome(loop)


def patterns(count):
    """Each array batched by itself, and all of them."""
    single = [[0 if n == place else None for n in range(count)] for place in range(count)]
    return single if count == 1 else [*single, [0] * count]


@pytest.fixture(autouse=True)
def loops_are_errors():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        warnings.simplefilter("error", BatchingFallbackWarning)
        yield


def test_every_operator_with_tensors_has_a_rule():
    dispatcher = OPERATORS.add.Tensor.dispatcher
    schemas = [dispatcher.get_schema(name).schema for name in dispatcher.operators()]
    takes_tensors = {
        str(schema.name).removeprefix("array::")
        for schema in schemas
        if str(schema.name).startswith("array::")
        and any(argument.type.dispatches for argument in schema.arguments)
    }
    # ``grad`` walks back through a graph, which no level of a transform is part of; ``detach`` is
    # composite.
    assert RULES.keys() | DECOMPOSITIONS.keys() == takes_tensors - {"grad", "detach"}


CHUNKS = 4


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_a_batch_is_what_a_loop_gives(chunk):
    rng = np.random.default_rng(chunk)
    compared = 0
    for number, (name, calls) in enumerate(CALLS.items()):
        if number % CHUNKS != chunk:
            continue
        operator = operator_of(name)
        calls = [call for call in calls if slots_of([*call[0], *call[1].values()])]
        wanted = 10 if len(calls) > 60 else 5
        for args, named in calls[:: max(1, len(calls) // wanted)]:

            def function(*tensors, args=args, named=named, operator=operator):
                left = iter(tensors)
                given = [filled(each, left) for each in args]
                result = operator(*given, **{k: filled(v, left) for k, v in named.items()})
                return tuple(result) if isinstance(result, list | tuple) else (result,)

            slots = slots_of([*args, *named.values()])
            for in_dims in patterns(len(slots)):
                arrays = [
                    make(rng, slot, name, dim == 0)
                    for slot, dim in zip(slots, in_dims, strict=True)
                ]
                got, want = beside_loop(name, function, arrays, in_dims)
                what = (name, args, named, in_dims)
                if name in LENIENT and (got is None or want is None):
                    continue
                assert (got is None) == (want is None), what
                if got is None or want is None:
                    continue
                compared += 1
                for one, other in zip(got, want, strict=True):
                    assert (one.shape, one.dtype) == (other.shape, other.dtype), what
                    if name != "empty_like":
                        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9, err_msg=what)
    assert compared > 150


def test_vmap_refuses_operators_with_data_dependent_shapes():
    x = Tensor(np.arange(6.0).reshape(2, 3))
    for name in BY_ELEMENTS:
        with pytest.raises(TransformError, match=f"vmap cannot batch array::{name}"):
            vmap(operator_of(name))(x)
    repeats = Tensor(np.ones((2, 3), np.int64))
    with pytest.raises(TransformError, match="depends on the numbers of repetitions"):
        vmap(operator_of("repeat.Tensor"))(x, repeats)
    same = vmap(operator_of("repeat.Tensor"), in_dims=(0, None))(x, repeats[0])
    np.testing.assert_array_equal(same, x)
    with pytest.raises(TransformError, match="depends on the elements of a mask"):
        vmap(lambda a: a[a > 1])(x)


# -- indexing ------------------------------------------------------------------------------------


class Index:
    """A random index: entries, with arrays that may be batched."""

    def __init__(self, chance, rng, shape):
        self.entries, self.arrays, self.in_dims = [], [], []
        joint = chance.choice([(), (2,), (2, 1), (3, 2)])
        axes = list(shape)
        while axes and chance.random() < 0.85:
            kind = chance.choice(["new", "slice", "slice", "number", "mask", "array", "array"])
            if kind == "new":
                self.entries.append(None)
                continue
            extent = axes.pop(0)
            if kind == "slice":
                bounds = [None, 0, -2, 1], [None, 2, -1], [None, 1, -1, 2]
                self.entries.append(slice(*map(chance.choice, bounds)))
            elif kind == "number":
                self.entries.append(chance.choice([0, -1]))
            elif kind == "mask":
                self._add(rng.integers(0, 2, extent).astype(bool), None)
            else:
                dim = chance.choice([0, None])
                own = joint[chance.randint(0, len(joint)) :]
                self._add(rng.integers(-1, 1, ((BATCH,) if dim == 0 else ()) + own), dim)

    def _add(self, array, dim):
        self.entries.append(len(self.arrays) + 100)
        self.arrays.append(array)
        self.in_dims.append(dim)

    def of(self, arrays):
        return tuple(
            arrays[each - 100] if type(each) is int and each >= 100 else each
            for each in self.entries
        )


@pytest.mark.parametrize("seed", range(3))
def test_any_index_of_a_batch(seed):
    chance, rng = random.Random(seed), np.random.default_rng(seed)
    read = written = 0
    for _ in range(100):
        shape = tuple(chance.choice([1, 2, 3]) for _ in range(chance.randint(1, 4)))
        dim = chance.choice([0, 0, None])
        x = rng.normal(size=((BATCH,) if dim == 0 else ()) + shape)
        index = Index(chance, rng, shape)
        in_dims = [dim, *index.in_dims]
        if 0 not in in_dims:
            continue

        def get(x, *arrays, index=index):
            return (x[index.of(arrays)],)

        got, want = beside_loop("getitem", get, [x, *index.arrays], in_dims)
        assert (got is None) == (want is None), index.entries
        if got is None or want is None:
            continue
        np.testing.assert_array_equal(got[0], want[0], err_msg=str(index.entries))
        read += 1
        if dim is None:
            continue
        own = want[0].shape[1:][chance.randint(0, want[0].ndim - 1) :]
        value = np.zeros((BATCH, *(chance.choice([extent, 1]) for extent in own)))
        value += np.arange(1, BATCH + 1).reshape(BATCH, *[1] * (value.ndim - 1))
        which = chance.choice([0, None])

        def put(x, value, *arrays, index=index):
            x = +x
            x[index.of(arrays)] = value
            return (x,)

        values = value if which == 0 else value[0]
        in_dims[:1] = [0, which]
        got, want = beside_loop("setitem_", put, [x, values, *index.arrays], in_dims)
        assert None not in (got, want), index.entries
        np.testing.assert_array_equal(got[0], want[0], err_msg=str(index.entries))
        written += 1
    assert read > 40
    assert written > 25


def test_a_mask_of_each_sample_may_be_written_to():
    x = Tensor(np.arange(12.0).reshape(2, 3, 2))
    levels = Tensor(np.array([100.0, 200.0]))

    def clear(a, level):
        a = +a
        a[a > 4] = 0.0
        a[a[:, 0] == 2] = level
        return a

    want = x.array.copy()
    want[want > 4] = 0.0
    want[0, 1] = 100.0
    np.testing.assert_array_equal(vmap(clear)(x, levels), want)


def test_rules_nest():
    """Two batches of one operator, in all ways that they can be in its arguments."""
    rng = np.random.default_rng(0)
    for name in ("add.Tensor", "matmul", "linalg_solve", "where.ScalarOther", "take", "vecdot"):
        operator = operator_of(name)
        first = rng.normal(size=(2, 3, 4, 4))
        if name.startswith("where"):
            first = first > 0
        second = rng.normal(size=(2, 3, 4))
        others = ()
        if name.startswith("where"):
            others = (0.5,)
        if name == "take":
            second = rng.integers(0, 4, (2, 3, 4))
        options = {"axis": 0} if name == "take" else {}
        for outer, inner in itertools.product([(0, 0), (0, None), (None, 0)], repeat=2):
            batched = [
                array[tuple(0 if dims[n] is None else slice(None) for dims in (outer, inner))]
                for n, array in enumerate((first, second))
            ]

            def function(a, b, operator=operator, others=others, options=options):
                return operator(a, b, *others, **options)

            got = vmap(vmap(function, inner), outer)(*map(Tensor, batched))
            for i, j in itertools.product(range(2), range(3)):
                at = [
                    array[i if outer[n] == 0 else 0, j if inner[n] == 0 else 0]
                    for n, array in enumerate((first, second))
                ]
                want = function(*map(Tensor, at))
                np.testing.assert_allclose(got[i, j], want, err_msg=f"{name} {outer} {inner}")

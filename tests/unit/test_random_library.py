"""Random numbers: what a generator is, and what the operators of the library ``random`` make."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import threading

import numpy as np
import pytest

import opdispatch.random_library  # noqa: F401 - the operators
from opdispatch import (
    ArgumentError,
    AutogradError,
    DeviceError,
    DispatchKey,
    DispatchKeySet,
    Generator,
    Library,
    MetaArray,
    Tensor,
    default_generator,
    manual_seed,
    no_grad,
    ops,
)
from opdispatch import array_api as xp
from opdispatch.autograd import gradcheck
from opdispatch.native.random.philox_cuda import ROUNDS
from opdispatch.tensors.generator import DEFAULT_SEED, GeneratorState, words_from
from tests.waits import LONGEST_WAIT, join

random = ops.random


def seeded(seed: int = 7) -> Generator:
    return Generator().manual_seed(seed)


# -- generators --------------------------------------------------------------------------------


def test_a_new_generator_has_pytorchs_seed_and_any_64_bits_are_one():
    assert Generator().initial_seed() == DEFAULT_SEED
    assert Generator().manual_seed(-1).initial_seed() == 2**64 - 1
    assert Generator("cuda:1").device == "cuda:1"
    for bad in (2**64, -(2**63) - 1, 1.5, "1"):
        with pytest.raises(ArgumentError, match="a seed "):
            Generator().manual_seed(bad)
    with pytest.raises(DeviceError, match="there is no device 'gpu'"):
        Generator("gpu")


def test_a_state_can_be_kept_and_gone_back_to():
    generator = seeded()
    random.rand([3], generator=generator)
    kept, clone = generator.get_state(), generator.clone_state()
    first = random.rand([3], generator=generator)
    assert kept.dtype == np.uint8
    generator.set_state(kept)
    np.testing.assert_array_equal(random.rand([3], generator=generator), first)
    np.testing.assert_array_equal(random.rand([3], generator=clone), first)
    generator.set_offset(0)
    assert generator.state == seeded().state
    for bad in (np.zeros(3, np.uint8), np.zeros(16), None):
        with pytest.raises(ArgumentError, match="an array of 16 bytes"):
            generator.set_state(bad)
    with pytest.raises(ArgumentError, match="unsigned integers of 64 bits"):
        generator.set_offset(-1)


def test_seed_begins_a_sequence_that_was_not_there_before():
    generator = Generator()
    assert generator.seed() == generator.initial_seed() != DEFAULT_SEED
    assert generator.get_offset() == 0


def test_default_generators_are_seeded_together_and_else_differ():
    manual_seed(3)
    first = random.rand([2])
    manual_seed(3)
    np.testing.assert_array_equal(random.rand([2]), first)
    assert default_generator("cuda") is default_generator("cuda:0")
    assert default_generator("cuda").initial_seed() == 3
    assert default_generator("privateuseone:2").initial_seed() == 3
    assert default_generator().seed() != 3


def test_threads_that_share_a_generator_draw_different_numbers():
    generator, drawn = seeded(), []

    def draw() -> None:
        drawn.extend(random.rand([4], generator=generator).array for _ in range(50))

    threads = [threading.Thread(target=draw) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        join(thread)
    assert len({each.tobytes() for each in drawn}) == 150
    assert generator.get_offset() == 150


@pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler")
def test_the_words_of_a_gpu_are_those_of_the_host(tmp_path):
    source = tmp_path / "philox.c"
    source.write_text(
        "static unsigned long long __umul64hi(unsigned long long a, unsigned long long b)"
        "{ return ((unsigned __int128)a * b) >> 64; }\n"
        "void philox(unsigned long long seed, unsigned long long block, unsigned long long *out)"
        f"{{ {ROUNDS} for (int i = 0; i < 4; ++i) out[i] = c[i]; }}\n"
    )
    subprocess.run(
        ["cc", "-shared", "-fPIC", "-o", tmp_path / "p.so", source],
        check=True,
        timeout=LONGEST_WAIT,
    )
    philox = ctypes.CDLL(str(tmp_path / "p.so")).philox
    for seed, block in ((0, 0), (7, 123456789), (2**64 - 1, 2**64 - 2), (5, 2**64 - 1)):
        out = (ctypes.c_ulonglong * 4)()
        philox(ctypes.c_ulonglong(seed), ctypes.c_ulonglong(block), out)
        assert list(out) == words_from(GeneratorState(seed, block), 4).tolist()


# -- dispatch ----------------------------------------------------------------------------------


def test_a_generator_adds_its_keys_to_a_call():
    rand, normal_ = random.rand.default, random.normal_.default
    keys = rand.dispatch_keys(rand.bind([[2]], {"generator": Generator("cuda")}))
    assert keys == DispatchKeySet.of(DispatchKey.CUDA, DispatchKey.BackendSelect)
    assert rand.dispatch_keys(rand.bind([[2]], {})) == DispatchKeySet.of(DispatchKey.BackendSelect)
    assert "nondeterministic_seeded" in normal_.tags


def test_an_outside_generator_is_dispatched_by_its_own_key():
    outside = Generator(key_set=DispatchKeySet.of(DispatchKey.CustomRNGKeyId))

    def from_outside(x, mean, std, *, generator):
        x.array[...] = 42
        return x

    x, plain = Tensor(np.zeros(3)), np.zeros(2)
    with Library("random", "IMPL") as lib:
        lib.impl("normal_", from_outside, "CustomRNGKeyId")
        for _ in range(2):  # the second call is compiled
            assert random.normal_(x, generator=outside).array.tolist() == [42] * 3
        assert random.normal_(x, generator=seeded()).array[0] != 42
        with pytest.raises(AttributeError):  # arrived there as well
            random.normal_(plain, generator=outside)


def test_generator_of_another_device_or_type_is_refused():
    with pytest.raises(DeviceError, match="Expected a 'cpu' device type for generator but found"):
        random.rand([2], generator=Generator("cuda"))
    with pytest.raises(ArgumentError, match=r"takes an opdispatch\.Generator, but was given one"):
        random.rand([2], generator=np.random.default_rng())
    with pytest.raises(ArgumentError, match=r"expected Generator\? \(opdispatch"):
        random.rand([2], generator=3)


# -- distributions -----------------------------------------------------------------------------

SIZE = 20000


@pytest.mark.parametrize(
    "dtype", ["float64", "float32", "float16", "bfloat16", "complex64", "complex128"]
)
def test_uniform_and_normal_numbers_of_every_type(dtype):
    flat = random.rand([SIZE], dtype=dtype, generator=seeded()).array
    bell = random.randn([SIZE], dtype=dtype, generator=seeded()).array
    assert flat.dtype.name == bell.dtype.name == dtype
    flat, bell = flat.astype("complex128"), bell.astype("complex128")
    parts = [flat.real, flat.imag] if dtype.startswith("complex") else [flat.real]
    for part in parts:
        assert 0 <= part.min() < 0.01
        assert 0.99 < part.max() < 1
        assert abs(part.mean() - 0.5) < 0.01
        assert abs(part.std() - 12**-0.5) < 0.01
    assert abs(bell.mean()) < 0.02
    assert abs(bell.std() - 1) < 0.02
    assert 2.8 < abs(bell).max() < 6


def test_draws_of_narrower_dtypes_agree_to_fewer_digits():
    wide, narrow = (
        random.rand([9], dtype=dtype, generator=seeded()).array for dtype in ("float64", "float32")
    )
    np.testing.assert_allclose(wide, narrow, atol=2**-24)


def test_integers_of_a_range_and_a_permutation():
    drawn = random.randint(-3, 4, [SIZE], generator=seeded()).array
    counts = np.bincount(drawn + 3)
    assert drawn.dtype == np.int64
    assert len(counts) == 7
    assert abs(counts - SIZE / 7).max() < 200
    assert random.randint(256, [3], dtype=np.uint8).dtype == np.uint8
    low, high = -(2**63), 2**63 - 1
    wide = random.randint(low, high, [100], generator=seeded()).array
    assert wide.min() < -(2**62)
    assert wide.max() > 2**62
    assert sorted(random.randperm(50, generator=seeded()).array) == list(range(50))
    assert random.randperm(0).shape == (0,)


def test_bernoulli_takes_a_number_or_one_for_each_element():
    chances = np.repeat([0.0, 0.25, 1.0], SIZE)
    drawn = random.bernoulli(chances, generator=seeded()).reshape(3, SIZE)
    assert drawn[0].max() == 0
    assert drawn[2].min() == 1
    assert abs(drawn[1].mean() - 0.25) < 0.02
    x = np.zeros(SIZE, np.int32)
    assert random.bernoulli_(x, 0.75, generator=seeded()) is x
    assert abs(x.mean() - 0.75) < 0.02
    assert random.bernoulli(x, 0.5).dtype == np.int32


def test_writes_go_into_views_and_count():
    x = Tensor(np.zeros((3, 4), np.float32))
    random.uniform_(x[1], 2.0, 3.0, generator=seeded())
    assert x.array[1].min() >= 2
    assert x.array[[0, 2]].max() == 0
    assert x._version == 1


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: random.rand([-1]), r"was given the shape \[-1\]"),
        (lambda: random.rand([2], dtype=np.int32), "numbers of float64, .*, not of int32"),
        (lambda: random.randint(3, 3, [1]), "low=3 and high=3; expected low < high"),
        (lambda: random.randint(300, [1], dtype=np.int8), "int8 cannot represent all of them"),
        (lambda: random.randint(2**12, [1], dtype=np.float16), "float16 cannot represent all"),
        (lambda: random.randint(2, [1], dtype=np.complex64), "of a real dtype, not of complex64"),
        (lambda: random.randperm(200, dtype=np.int8), "int8 cannot represent all"),
        (
            lambda: random.normal_(np.zeros(1), 0.0, -1.0),
            "standard deviation is -1.0; expected 0 or more",
        ),
        (
            lambda: random.uniform_(np.zeros(1), 1.0, 0.0),
            "interval is from 1.0 to 0.0; expected finite",
        ),
        (
            lambda: random.bernoulli(np.zeros(1), 1.5),
            "probability is 1.5; expected a number from 0 to 1",
        ),
        (
            lambda: random.bernoulli(np.full(1, np.nan)),
            "probability is out of range; expected a number",
        ),
        (
            lambda: random.dropout(np.zeros(1), -0.5),
            "probability is 1.5; expected a number from 0 to 1",
        ),
    ],
)
def test_invalid_draw_raises_argument_error(call, words):
    with pytest.raises(ArgumentError, match=words):
        call()


# -- meta, gradients ---------------------------------------------------------------------------

CALLS = {
    "rand": lambda **o: random.rand([3, 5], dtype=np.float32, **o),
    "randn": lambda **o: random.randn([3], **o),
    "complex": lambda **o: random.randn([3], dtype=np.complex64, **o),
    "randint": lambda **o: random.randint(5, [7], **o),
    "randperm": lambda **o: random.randperm(9, **o),
}
LIKE = {
    "rand_like": lambda x, **o: random.rand_like(x, **o),
    "randn_like": lambda x, **o: random.randn_like(x, dtype=np.float32, **o),
    "bernoulli": lambda x, **o: random.bernoulli(x, **o),
    "normal_": lambda x, **o: random.normal_(x, **o),
    "native_dropout": lambda x, **o: random.native_dropout(x, 0.25, **o)[0],
    "dropout": lambda x, **o: random.dropout(x, 0.25, **o),
}


@pytest.mark.parametrize("name", [*CALLS, *LIKE])
def test_on_meta_a_call_has_the_shape_and_a_generator_goes_on_as_elsewhere(name):
    here, there = seeded(), seeded()
    if name in CALLS:
        made = CALLS[name](generator=here)
        meta = CALLS[name](generator=there, device="meta")
    else:
        made = LIKE[name](Tensor(np.full((3, 5), 0.5)), generator=here)
        meta = LIKE[name](Tensor(MetaArray((3, 5), "float64")), generator=there)
    assert (meta.device, meta.shape, meta.dtype) == ("meta", made.shape, made.dtype)
    assert there.state == here.state != seeded().state


def test_dropout_keeps_what_it_keeps_and_has_a_derivative():
    x = Tensor(np.arange(1.0, 2001.0), requires_grad=True)
    y = random.dropout(x, 0.25, generator=seeded())
    kept = y.array != 0
    np.testing.assert_allclose(y.array[kept], x.array[kept] / 0.75)
    assert abs(kept.mean() - 0.75) < 0.05
    xp.sum(y).backward()
    np.testing.assert_allclose(x.grad.array, kept / 0.75)
    assert random.dropout(x, 0.5, False) is x
    assert not random.dropout(x, 1.0).array.any()
    small = Tensor(np.array([1.0, 2.0, 3.0]), requires_grad=True)
    assert gradcheck(lambda t: random.dropout(t, 0.5, generator=seeded()), small)


def test_random_numbers_have_no_gradient():
    x = Tensor(np.full(3, 0.5), requires_grad=True)
    assert not random.rand_like(x).requires_grad
    assert not random.bernoulli(x).requires_grad
    with pytest.raises(AutogradError, match="a leaf that requires gradients"):
        random.normal_(x)
    with no_grad():
        random.normal_(x, generator=seeded())
    y = x * 2
    random.uniform_(y[1:], generator=seeded())
    xp.sum(y).backward()
    assert x.grad.array.tolist() == [2, 0, 0]

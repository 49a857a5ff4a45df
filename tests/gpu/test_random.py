"""Random numbers that are drawn on a GPU: those of the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import opdispatch.random_library  # noqa: F401 - the operators
from opdispatch import ArgumentError, DeviceError, Generator, Tensor, default_generator, ops

pytestmark = pytest.mark.gpu

random = ops.random
CALLS = {
    "rand": lambda **o: random.rand([1001], dtype=np.float32, **o),
    "randn": lambda **o: random.randn([7, 3], **o),
    "complex": lambda **o: random.randn([5], dtype=np.complex64, **o),
    "randint": lambda **o: random.randint(-(2**40), 2**40, [1000], **o),
    "randperm": lambda **o: random.randperm(500, **o),
}
LIKE = {
    "normal_": lambda x, g: random.normal_(x, 1.0, 2.0, generator=g),
    "uniform_": lambda x, g: random.uniform_(x, generator=g),
    "bernoulli": lambda x, g: random.bernoulli(x, generator=g),
    "dropout": lambda x, g: random.dropout(x, 0.25, generator=g),
}


def generators() -> tuple[Generator, Generator]:
    return Generator().manual_seed(2**63 + 5), Generator("cuda").manual_seed(2**63 + 5)


@pytest.mark.parametrize("name", [*CALLS, *LIKE])
def test_gpu_draws_equal_host_draws(cupy: Any, name: str):
    here, there = generators()
    for _ in range(2):
        if name in CALLS:
            expected = CALLS[name](generator=here)
            made = CALLS[name](generator=there, device="cuda")
        else:
            x = np.full((4, 25), 0.5)
            expected = LIKE[name](Tensor(x.copy()), here)
            made = LIKE[name](Tensor(x).to("cuda"), there)
        assert made.device == "cuda:0"
        assert (made.dtype, there.state) == (expected.dtype, here.state)
        np.testing.assert_allclose(np.asarray(made.to("cpu")), expected.array, rtol=1e-6)


def test_draws_with_too_many_elements_raise_argument_error(cupy: Any):
    state = default_generator("cuda").state
    for size in ([2**61], [2**32, 2**32]):
        with pytest.raises(ArgumentError, match="more elements than an array can have"):
            random.rand(size, device="cuda")
    assert default_generator("cuda").state == state


def test_each_device_has_a_generator_of_its_own(cupy: Any):
    before = default_generator().state
    random.rand([3], device="cuda")
    assert default_generator().state == before
    assert default_generator("cuda").get_offset() > 0
    with pytest.raises(DeviceError, match="Expected a 'cuda:0' device type for generator"):
        random.rand([3], device="cuda", generator=Generator())

"""Fake tensors: shapes, types and devices of what operators would return, without doing it."""

from __future__ import annotations

import numpy as np
import pytest

import opdispatch.random_library  # noqa: F401 - the operators
from opdispatch import (
    ArgumentError,
    DataDependentOutputError,
    DeviceError,
    DispatchKey,
    DispatchKeySet,
    DuplicateDefinitionError,
    FlopCounterMode,
    Generator,
    Library,
    LoggingMode,
    MetaArray,
    NoKernelError,
    Tensor,
    autocast,
    ops,
    register_fake,
    sparse_coo_tensor,
)
from opdispatch import array_api as xp
from opdispatch.fake_tensor import FakeTensorMode, is_fake
from opdispatch_wire.calls import call_request
from opdispatch_wire.errors import WireError

K = DispatchKey


def facts(value):
    assert is_fake(value)
    return value.device, value.shape, value.dtype.name


@pytest.fixture
def mode():
    with FakeTensorMode() as mode:
        yield mode


# -- devices -----------------------------------------------------------------------------------


def test_a_factory_makes_a_fake_tensor_on_the_device_that_is_asked_for(mode):
    assert facts(xp.zeros((2, 3), device="cuda")) == ("cuda:0", (2, 3), "float64")
    assert facts(xp.arange(5, device="xpu:2")) == ("xpu:2", (5,), "int64")
    assert facts(xp.ones(3)) == ("cpu", (3,), "float64")
    assert facts(ops.random.randn([4], device="cuda:1")) == ("cuda:1", (4,), "float64")
    assert not is_fake(xp.zeros(2, device="meta"))


def test_fake_tensor_has_fake_and_the_keys_of_its_device():
    x = FakeTensorMode().from_tensor(np.ones(2))
    with FakeTensorMode():
        y = xp.zeros(2, device="cuda")
    assert x.key_set == DispatchKeySet.of(
        K.CPU, K.Fake, K.ADInplaceOrView, K.AutogradCPU, K.AutocastCPU
    )
    assert y.key_set == DispatchKeySet.of(
        K.CUDA, K.Fake, K.ADInplaceOrView, K.AutogradCUDA, K.AutocastCUDA
    )


def test_a_result_is_on_the_common_device(mode):
    x = xp.ones((3, 4), device="cuda", dtype=xp.float32)
    for made in (
        x + 1,
        x * np.float32(2),
        x * xp.asarray(2.0, dtype=xp.float32),
        xp.where(x > 0, x, xp.zeros_like(x)),
        xp.concat([x, x]),
        xp.linalg.svd(x)[1],
        x @ x.T,
        x[xp.zeros(2, dtype=xp.int64)],  # indices may be on the host
        xp.sum(x),
    ):
        assert facts(made)[0] == "cuda:0"
    assert facts(x.to("cpu")) == ("cpu", (3, 4), "float32")
    assert facts(xp.zeros_like(x, device="cpu"))[0] == "cpu"
    assert facts(xp.astype(x, xp.float64, device="cuda:1")) == ("cuda:1", (3, 4), "float64")
    assert x.to("cuda") is x


def test_tensors_on_two_devices_are_refused_as_pytorch_words_it(mode):
    x, y = xp.ones(3, device="cuda"), xp.ones(3)
    for call in (lambda: x + y, lambda: xp.concat([y, x]), lambda: y.__setitem__(0, x)):
        with pytest.raises(DeviceError, match="found at least two devices, c"):
            call()
    with pytest.raises(DeviceError, match="cuda:0 and cuda:1"):
        x + xp.ones(3, device="cuda:1")
    with pytest.raises(DeviceError, match="cuda:0 and meta"):
        x + xp.zeros(3, device="meta")


def test_shapes_that_do_not_fit_are_refused(mode):
    with pytest.raises(ArgumentError, match=r"\[3\] and \[4\], which do not broadcast"):
        xp.ones(3, device="cuda") + xp.ones(4, device="cuda")


# -- what is real ------------------------------------------------------------------------------


def test_a_tensor_with_elements_is_refused_unless_it_is_allowed():
    real = Tensor(np.ones(3))
    fake = FakeTensorMode().from_tensor(real)
    with FakeTensorMode():
        for call in (lambda: fake + real, lambda: real + 1, lambda: fake + np.ones(3)):
            with pytest.raises(
                ArgumentError, match=r"elements, of shape \[3\] and dtype float64; expected fake"
            ):
                call()
        assert is_fake(fake + Tensor(np.float64(2)))
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert facts(fake + real) == facts(real + 1) == ("cpu", (3,), "float64")
        with FakeTensorMode(), pytest.raises(ArgumentError, match="from_tensor"):
            real + 1
    assert not is_fake(real + 1)


def test_a_fake_tensor_stays_one_outside_of_the_block():
    fake = FakeTensorMode().from_tensor(Tensor(np.ones((2, 2)), requires_grad=True))
    assert facts(fake @ fake) == ("cpu", (2, 2), "float64")
    assert fake.requires_grad
    assert fake.detach().array is fake.array
    assert FakeTensorMode().from_tensor(fake) is fake
    with pytest.raises(ArgumentError, match="a fake tensor is dense"):
        FakeTensorMode().from_tensor(sparse_coo_tensor([[0]], [1.0], (2,)))
    with pytest.raises(DeviceError, match="cannot be on 'meta'"):
        FakeTensorMode().from_tensor(MetaArray((2,), "float32"))


@pytest.mark.parametrize(
    "read",
    [float, int, bool, complex, np.asarray, lambda x: x.item(), np.exp, lambda x: [1, 2][x]],
)
def test_elements_cannot_be_read(mode, read):
    for device in ("cpu", "cuda"):
        with pytest.raises(DataDependentOutputError, match="has no elements to read"):
            read(xp.zeros((), device=device, dtype=xp.int64))


def test_elements_of_a_tensor_on_meta_cannot_be_read_either():
    for read in (float, bool, np.exp):
        with pytest.raises((DataDependentOutputError, DeviceError), match=r"has none|meta"):
            read(Tensor(MetaArray((), "float32")))


def test_a_shape_that_depends_on_elements_is_refused(mode):
    with pytest.raises(ArgumentError, match="depends on the elements"):
        xp.nonzero(xp.zeros(3, device="cuda"))


def test_fake_tensor_cannot_be_sent(mode):
    with pytest.raises(WireError, match="no elements"):
        call_request("t::f", [xp.ones(3)], {})
    assert not call_request("t::f", [1], {}).HasField("local_keys")


# -- operators of one's own --------------------------------------------------------------------


@pytest.fixture
def lib():
    with Library("fakes", "DEF") as lib:
        yield lib


def test_an_operator_without_a_kernel_for_meta_says_what_to_do(lib, mode):
    lib.define("f(Tensor x) -> Tensor")
    lib.impl("f", lambda x: x, "CPU")
    x = xp.ones(3, device="cuda")
    with pytest.raises(NoKernelError, match=r"@opdispatch\.register_fake\('fakes::f'\)"):
        ops.fakes.f(x)

    @register_fake("fakes::f", lib=lib)
    def shape_of(x):
        assert x.device == "meta"
        return xp.zeros((*x.shape, 2), device=x.device)

    assert facts(ops.fakes.f(x)) == ("cuda:0", (3, 2), "float64")
    assert ops.fakes.f(Tensor(MetaArray((1,), "f4"))).device == "meta"
    with pytest.raises(DuplicateDefinitionError, match="has a kernel for Meta already"):
        register_fake("fakes::f", shape_of, lib=lib, allow_override=False)
    register_fake("fakes::f", lambda x: x, lib=lib)
    assert ops.fakes.f(x) is x


def test_composite_operators_and_writes_and_several_results(lib, mode):
    lib.define("outer(Tensor x) -> (Tensor, Tensor[], int)")
    lib.impl("outer", lambda x: (x + 1, [x, xp.exp(x)], 3))
    lib.define("explicit(Tensor x) -> Tensor")
    lib.impl("explicit", lambda x: xp.stack([x, x]), "CompositeExplicitAutograd")
    x = xp.ones(3, device="cuda")
    one, [same, other], number = ops.fakes.outer(x)
    assert same is x
    assert number == 3
    assert facts(one) == facts(other) == facts(x)
    assert facts(ops.fakes.explicit(x)) == ("cuda:0", (2, 3), "float64")
    x[1:] = 3
    assert x._version == 1
    assert ops.random.normal_(x) is x


# -- with other functionalities ----------------------------------------------------------------


def test_gradients_are_of_shapes_alone(mode):
    w = xp.ones((4, 5), device="cuda", dtype=xp.float32).requires_grad_()
    y = 2 * xp.exp(xp.ones((3, 4), device="cuda", dtype=xp.float32) @ w)
    y[0] = 1.0
    part = y[1:]
    part[...] = part * 2
    assert y.grad_fn.name == "CopySlices"
    xp.sum(y).backward()
    assert facts(w.grad) == ("cuda:0", (4, 5), "float32")


def test_autocast_casts_what_is_on_its_device(mode):
    x, y = (xp.ones((2, 2), device=d, dtype=xp.float32) for d in ("cuda", "cpu"))
    with autocast("cuda"):
        assert (facts(x @ x)[2], facts(y @ y)[2]) == ("float16", "float32")


def test_modes_see_its_calls_and_operations_of_a_gpu_are_counted_without_one(mode):
    lines = []
    x = xp.ones((8, 4), device="cuda")
    with LoggingMode(lines.append), FlopCounterMode(display=False) as counter:
        x @ x.T
    assert counter.get_total_flops() == 2 * 8 * 4 * 8
    assert lines[-1] == "array::matmul(float64[8, 4], float64[4, 8]) -> float64[8, 8]"


def test_fake_random_calls_do_not_advance_the_generator(mode):
    generator = Generator().manual_seed(1)
    assert facts(ops.random.rand([3], generator=generator))[1] == (3,)
    assert facts(ops.random.dropout(xp.ones(3, device="cuda"), 0.5)) == ("cuda:0", (3,), "float64")
    assert generator.get_offset() == 0


def test_no_memory_is_taken(mode):
    huge = xp.zeros((2**30, 2**30), device="cuda")
    assert facts(huge @ huge)[1] == (2**30, 2**30)

"""Construction that is done later: what is made is what would have been made at once."""

from __future__ import annotations

import random

import numpy as np
import pytest

import opdispatch.random_library  # noqa: F401 - the operators
from opdispatch import (
    ArgumentError,
    DataDependentOutputError,
    Generator,
    Library,
    LoggingMode,
    Tensor,
    autocast,
    default_generator,
    functionalize,
    manual_seed,
    no_grad,
    ops,
    vmap,
)
from opdispatch import array_api as xp
from opdispatch.deferred_init import deferred_init, materialize_module, materialize_tensor
from opdispatch.fake_tensor import FakeTensorMode, is_fake

draw = ops.random


def assert_same(made, expected):
    assert not is_fake(made)
    assert (made.dtype, made.requires_grad, made.is_leaf) == (
        expected.dtype,
        expected.requires_grad,
        expected.is_leaf,
    )
    np.testing.assert_array_equal(made.detach(), expected.detach())


def both(function, *args):
    """Return the function's results, run now and deferred, from one state."""
    manual_seed(17)
    eager = function(*args)
    state = default_generator().state
    manual_seed(17)
    deferred = deferred_init(function, *args)
    assert default_generator().state == state
    manual_seed(0)  # what is drawn later does not come from here
    return eager, deferred


class Layer:
    def __init__(self, width: int) -> None:
        self.weight = draw.normal_(xp.zeros((width, width), dtype=xp.float32), 0.0, 0.02)
        self.bias = xp.zeros(width)
        self.weight.requires_grad = True
        self.bias[1:] = draw.rand([width - 1])
        self.halves = [self.bias[:2], {"last": self.bias[2:]}]
        self.scale = (xp.sum(self.bias), self.bias)


def test_a_module_is_what_it_would_have_been():
    eager, layer = both(Layer, 4)
    assert is_fake(layer.weight)
    assert layer.weight.requires_grad
    assert materialize_module(layer) is layer
    assert_same(layer.weight, eager.weight)
    assert_same(layer.bias, eager.bias)
    assert_same(layer.scale[0], eager.scale[0])
    assert layer.scale[1] is layer.bias
    layer.bias[3] = 7.0  # views share its elements
    assert layer.halves[1]["last"].array[1] == 7


def test_only_what_is_needed_is_made_and_once():
    def make():
        a, b = draw.randn([3]), draw.randn([3])
        return a, b + 1, xp.exp(a)

    (first, *_), (a, b, c) = both(make)
    lines = []
    with LoggingMode(lines.append):
        made = materialize_tensor(a)
    assert [line.partition("(")[0] for line in lines] == []  # what was recorded had no mode
    assert_same(made, first)
    assert materialize_tensor(a) is made
    assert is_fake(c)
    np.testing.assert_array_equal(materialize_tensor(c), np.exp(made))
    state = default_generator().state
    materialize_tensor(b)
    assert default_generator().state == state
    assert materialize_tensor(made) is made


def test_a_write_comes_after_what_read_the_elements_before():
    def make():
        x = xp.ones(3)
        before = x * 2
        view = x[1:]
        x[...] = 5.0
        view[0] = 6.0
        return x, before, view

    eager, (x, before, view) = both(make)
    for fake, expected in zip((view, before, x), (eager[2], eager[1], eager[0]), strict=True):
        assert_same(materialize_tensor(fake), expected)


def test_a_generator_that_is_handed_over_goes_on():
    ours, theirs = Generator().manual_seed(3), Generator().manual_seed(3)
    expected = [draw.rand([3], generator=ours) for _ in range(3)]
    fakes = deferred_init(lambda: [draw.rand([3], generator=theirs) for _ in range(3)])
    assert theirs.state == ours.state
    for fake, wanted in reversed(list(zip(fakes, expected, strict=True))):
        assert_same(materialize_tensor(fake), wanted)


def test_replay_uses_the_modes_at_recording():
    def make():
        x = draw.randn([2, 2], dtype=np.float32)
        x.requires_grad = True
        with autocast("cpu", np.float16):
            low = x @ x
        with no_grad():
            silent = x * 2
        return x, low, silent, x.detach() * 3

    eager, deferred = both(make)
    with autocast("cpu"), no_grad(), FakeTensorMode():
        made = [materialize_tensor(each) for each in deferred]
    for one, other in zip(made, eager, strict=True):
        assert_same(one, other)
    xp.sum(made[1]).backward()
    assert made[0].grad is not None


def test_composite_operators_draw_as_they_would_have():
    with Library("composites", "DEF") as lib:
        lib.define("init_(Tensor(a!) x, float gain) -> Tensor(a!)")
        lib.impl("init_", lambda x, gain: draw.uniform_(draw.normal_(x, 0.0, gain), 0.0, gain))

        def make():
            return ops.composites.init_(xp.zeros(3), 2.0), draw.dropout(xp.ones(50), 0.5)

        eager, deferred = both(make)
        for fake, expected in zip(reversed(deferred), reversed(eager), strict=True):
            assert_same(materialize_tensor(fake), expected)


def test_replay_can_target_another_device():
    def make():
        return xp.ones(3, device="cuda") * xp.asarray([1.0, 2.0, 3.0]).to("cpu")[0] + draw.rand(
            [3], device="cuda"
        )

    fake = deferred_init(make)
    assert fake.device == "cuda:0"
    made = materialize_tensor(fake, device="cpu")
    assert made.device == "cpu"
    assert materialize_tensor(fake, device="cpu") is made
    on_meta = materialize_tensor(fake, device="meta")
    assert (on_meta.device, on_meta.shape) == ("meta", (3,))


def test_calls_of_real_tensors_run_at_once_and_keep_their_values():
    real, plain = Tensor(np.ones(2)), np.ones(2)

    def make():
        at_once = real * 3
        return at_once, xp.zeros(2) + at_once + plain, xp.zeros(2) + real

    at_once, later, other = deferred_init(make)
    assert at_once.array.tolist() == [3, 3]
    plain[...] = 9.0
    assert materialize_tensor(later).array.tolist() == [4, 4]
    real[0] = 5.0
    with pytest.raises(ArgumentError, match="was written to after the call was recorded"):
        materialize_tensor(other)


def test_calls_that_cannot_be_deferred_raise():
    real, outside = Tensor(np.ones(2)), FakeTensorMode().from_tensor(np.ones(2))
    with pytest.raises(DataDependentOutputError):
        deferred_init(lambda: float(xp.sum(xp.ones(3))))
    with pytest.raises(ArgumentError, match="writes to a tensor that already has elements"):
        deferred_init(lambda: real.__setitem__(0, xp.zeros(())))
    with pytest.raises(ArgumentError, match="that deferred_init did not record"):
        deferred_init(lambda: outside + xp.zeros(2))
    with pytest.raises(ArgumentError, match="can only be materialized if"):
        materialize_tensor(outside)
    assert xp.zeros(1).array.tolist() == [0]


def test_an_error_says_which_call_was_recorded():
    fake = deferred_init(lambda: xp.linalg.inv(xp.zeros((2, 2))))
    with pytest.raises(np.linalg.LinAlgError) as caught:
        materialize_tensor(fake)
    assert caught.value.__notes__ == [
        "raised by array::linalg_inv, whose call was recorded by deferred_init"
    ]


def program(seed: int):
    """A random program: new tensors, views, writes, draws."""

    def run() -> list[Tensor]:
        choose = random.Random(seed)
        tensors = [xp.ones((3, 3)), draw.rand([3, 3])]
        for _ in range(12):
            x, y = choose.choice(tensors), choose.choice(tensors)
            match choose.randrange(8):
                case 0:
                    tensors.append(x + y if x.shape == y.shape else x * 2)
                case 1:
                    tensors.append(x[1:] if x.shape[0] > 1 else x * 3)
                case 2:
                    tensors.append(xp.matrix_transpose(x))
                case 3:
                    x[0] = choose.random()
                case 4:
                    if x.shape == y.shape:
                        x[...] = y
                case 5:
                    draw.normal_(x)
                case 6:
                    tensors.append(xp.reshape(x, (-1, x.shape[1])))
                case 7:
                    tensors.append(draw.randn([2, 3]))
        return tensors

    return run


def write_and_sum(x):
    x[0] += 5.0
    return xp.sum(x * 2, axis=-1)


@pytest.mark.parametrize(
    "transform",
    [
        functionalize,
        vmap,
        lambda function: functionalize(vmap(function)),
        lambda function: vmap(functionalize(function)),
    ],
)
def test_a_transform_is_deferred_with_what_it_writes_to(transform):
    def make():
        x = xp.ones((3, 2))
        return x, transform(write_and_sum)(x)

    eager, deferred = both(make)
    for one, other in zip(reversed(deferred), reversed(eager), strict=True):
        assert_same(materialize_tensor(one), other)


@pytest.mark.parametrize("seed", range(40))
def test_random_programs_give_the_same_in_any_order(seed):
    eager, deferred = both(program(seed))
    order = list(range(len(deferred)))
    random.Random(seed).shuffle(order)
    for place in order:
        assert_same(materialize_tensor(deferred[place]), eager[place])
    for place in order:  # those that share elements still do
        eager[place][0] = float(place)
        materialize_tensor(deferred[place])[0] = float(place)
    for one, other in zip(deferred, eager, strict=True):
        assert_same(materialize_tensor(one), other)

"""The network of ``examples/digits``: its convolution beside SciPy's, its derivatives, training."""

from __future__ import annotations

import re

import numpy as np
import pytest
import scipy  # scipy.signal is imported where it is first used

from opdispatch import ArgumentError, MetaArray, Tensor, ops
from opdispatch import array_api as xp
from opdispatch.autograd import gradcheck, gradgradcheck
from tests.digits_example import FOLDER, digits, make_task, train

RNG = np.random.default_rng(0)


def leaf(*shape):
    return Tensor(RNG.normal(size=shape), requires_grad=True)


@pytest.mark.parametrize("padding", [0, [1, 1], [2, 0]])
def test_a_convolution_is_scipys_correlation(padding):
    x, weight = RNG.normal(size=(2, 3, 5, 4)), RNG.normal(size=(4, 3, 3, 2))
    down, across = np.broadcast_to(padding, 2)
    padded = np.pad(x, ((0, 0), (0, 0), (down, down), (across, across)))
    expected = [
        [sum(map(lambda a, b: scipy.signal.correlate(a, b, "valid"), image, w)) for w in weight]
        for image in padded
    ]
    result = ops.digits.conv2d(x, weight, padding)
    np.testing.assert_allclose(result, expected)
    wrapped = ops.digits.conv2d(Tensor(x), weight, padding)
    assert type(wrapped) is Tensor
    np.testing.assert_array_equal(wrapped.array, result)
    meta = ops.digits.conv2d(MetaArray(x.shape, x.dtype), MetaArray(weight.shape, "f8"), padding)
    assert (meta.shape, meta.dtype) == (result.shape, result.dtype)


def test_conv2d_derivatives_pass_gradcheck():
    arguments = leaf(2, 2, 4, 3), leaf(3, 2, 3, 2)
    assert gradcheck(lambda x, w: ops.digits.conv2d(x, w, [1, 1]), arguments)
    assert gradgradcheck(
        lambda x, w: ops.digits.conv2d(x, w, [2, 0]), (leaf(1, 1, 2, 3), leaf(1, 1, 3, 2))
    )
    # An array without gradients beside a tensor that has them.
    x = RNG.normal(size=(2, 2, 3, 3))
    assert gradcheck(lambda w: ops.digits.conv2d(x, w), leaf(1, 2, 2, 2))


def test_the_loss_has_the_derivatives_that_it_should():
    logits, labels = leaf(3, 4), Tensor(np.array([2, 0, 3]))
    loss = digits.cross_entropy(logits, labels)
    chances = np.exp(logits.array) / np.exp(logits.array).sum(axis=1, keepdims=True)
    assert np.isclose(loss.item(), -np.log(chances[[0, 1, 2], labels.array]).mean())
    loss.backward()
    np.testing.assert_allclose(logits.grad, (chances - np.eye(4)[labels.array]) / 3)


@pytest.mark.parametrize(
    ("x", "weight", "padding", "message"),
    [
        ((1, 2, 3, 3), (1, 3, 3, 3), 0, r"x \[1, 2, 3, 3\] of float64 and weight \[1, 3, 3, 3\]"),
        ((2, 3, 3), (1, 3, 3, 3), 0, r"x \[2, 3, 3\]"),
        ((1, 1, 3, 3), (1, 1, 4, 3), 0, r"a kernel of \[4, 3\] has no place in \[3, 3\]"),
        ((1, 1, 3, 3), (1, 1, 3, 3), 3, r"with padding \[3, 3\], which is from 0"),
        ((1, 1, 3, 3), (1, 1, 3, 3), -1, r"with padding \[-1, -1\]"),
    ],
)
def test_conv2d_shape_error_names_the_mismatch(x, weight, padding, message):
    with pytest.raises(ArgumentError, match=message):
        ops.digits.conv2d(np.zeros(x), np.zeros(weight), padding)


def test_functions_and_operators_train_alike_and_the_loss_falls():
    arrays, batches = make_task(10, 16)
    losses, _, parameters = train.train_here(arrays, batches)
    assert losses[0] > 2.2
    assert min(losses[-3:]) < losses[0] - 0.1
    assert not any(np.array_equal(a, b) for a, b in zip(arrays, parameters, strict=True))
    tensors = [Tensor(array.copy(), requires_grad=True) for array in arrays]
    velocities = [Tensor(np.zeros_like(array)) for array in arrays]
    step = train.make_step(ops.digits.loss, ops.digits.sgd_, train.grad, tensors, velocities)
    again, _ = train.run_steps(step, batches)
    assert again == losses
    assert [each.dtype for each in parameters] == ["float64"] * 6


def test_batches_are_all_images_of_an_epoch_once():
    learned, held_out = train.load_data()
    assert (len(learned[1]), len(held_out[1])) == (1500, 297)
    first = train.choose_batches((np.arange(10), np.arange(10)), 4, 5)
    assert [sorted((*first[n][0], *first[n + 1][0])) for n in (0, 2)] == [list(range(10))] * 2
    assert xp.asarray(learned[0]).shape == (1500, 1, 8, 8)


def test_the_python_of_the_readme_prints_what_it_says(capsys):
    [block] = re.findall(r"```python\n(.*?)```", (FOLDER / "README.md").read_text(), re.DOTALL)
    exec(block, {})
    promised = re.findall(r"^print\(.*\)\s+# (.*)$", block, re.MULTILINE)
    assert capsys.readouterr().out.splitlines() == promised != []

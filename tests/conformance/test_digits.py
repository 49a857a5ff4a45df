"""The training of ``examples/digits`` beside its twin in PyTorch, where that is installed."""

import numpy as np
import pytest

from tests.digits_example import make_task, train

pytest.importorskip("torch")
import torch_twin


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 1e-5)])
def test_the_loss_curves_are_the_same(dtype: str, tolerance: float):
    arrays, batches = make_task(40, 16, dtype)
    ours, _, here = train.train_here(arrays, batches)
    theirs, _, there = torch_twin.train(arrays, batches, train.LR, train.MOMENTUM)
    assert theirs[-1] < theirs[0] - 0.5
    np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance)
    for mine, other in zip(here, there, strict=True):
        assert mine.dtype == other.dtype == dtype
        np.testing.assert_allclose(mine, other, rtol=0, atol=tolerance)

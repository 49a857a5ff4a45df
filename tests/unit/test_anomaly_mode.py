"""Finding the call whose backward pass failed."""

import gc
import traceback
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from opdispatch import AutogradError, Tensor
from opdispatch import array_api as xp
from opdispatch.autograd import (
    Function,
    detect_anomaly,
    grad,
    is_anomaly_check_nan_enabled,
    is_anomaly_enabled,
    recording_state,
    set_detect_anomaly,
)
from tests.unit.leaf_tensors import leaf

pytestmark = pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")


def root_of(x):
    return xp.sqrt(x)


def shown(raised):
    return "".join(traceback.format_exception(raised.value))


def test_nan_gradient_error_names_the_recorded_call():
    x = leaf(0.0, 1.0)
    with detect_anomaly():
        y = root_of(x) * 0.0
        with pytest.raises(
            AutogradError, match=r"SqrtBackward returned NaN .* argument 0"
        ) as raised:
            xp.sum(y).backward()
    [note] = raised.value.__notes__
    assert note.startswith("raised by SqrtBackward, made by this call")
    assert note.endswith("in root_of\n    return xp.sqrt(x)")
    assert "opdispatch/array_api" not in note
    assert "test_nan_gradient_error_names_the_recorded_call" in note


def test_any_error_is_explained():
    class Failing(Function):
        forward = staticmethod(lambda ctx, x: x * 1)
        backward = staticmethod(lambda ctx, grad: 1 / 0)

    def failing(x):
        return Failing.apply(x)

    with detect_anomaly():
        y = failing(leaf(1.0))
        with pytest.raises(ZeroDivisionError) as raised:
            y.backward()
    assert "raised by FailingBackward" in shown(raised)
    assert "in failing" in shown(raised)
    with pytest.raises(ZeroDivisionError) as raised:
        failing(leaf(1.0)).backward()
    assert "raised by" not in shown(raised)


def test_errors_in_hooks_are_explained():
    with detect_anomaly():
        y = root_of(leaf(1.0))
        y.register_hook(lambda grad: 1 / 0)
        with pytest.raises(ZeroDivisionError) as raised:
            y.backward()
    assert "raised by SqrtBackward" in shown(raised)


def test_nodes_made_in_the_backward_pass_name_the_inducing_node():
    x = leaf(0.0)
    with detect_anomaly(check_nan=False):
        [first] = grad(root_of(x), x, create_graph=True)
    with detect_anomaly(), pytest.raises(AutogradError, match="returned NaN") as raised:
        (first * 0.0).backward()
    *_, last = raised.value.__notes__
    assert last.startswith("in the backward pass of SqrtBackward")
    assert "in root_of" in last


def test_calls_that_went_forward_without_it():
    y = root_of(leaf(0.0)) * 0.0
    with detect_anomaly(), pytest.raises(AutogradError, match="returned NaN") as raised:
        y.backward()
    assert "made while anomalies were not detected" in raised.value.__notes__[0]


def test_a_nan_may_be_none():
    x = leaf(0.0)
    with detect_anomaly(check_nan=False):
        (root_of(x) * 0.0).backward()
    assert np.isnan(x.grad.array[0])


def test_complex_and_other_gradients_are_looked_at():
    for dtype in ("complex128", "float32"):
        x = Tensor(np.zeros(2, dtype), requires_grad=True)
        with detect_anomaly():
            y = xp.sqrt(x) * 0.0
            with pytest.raises(AutogradError, match="returned NaN"):
                y.backward(xp.ones_like(y.detach()))


def test_anomaly_mode_is_set_by_block_or_call_for_one_thread():
    assert not is_anomaly_enabled()
    with set_detect_anomaly(True, check_nan=False):
        assert (is_anomaly_enabled(), is_anomaly_check_nan_enabled()) == (True, False)
        with detect_anomaly():
            assert is_anomaly_check_nan_enabled()
        with set_detect_anomaly(False):
            assert not is_anomaly_enabled()
        assert not is_anomaly_check_nan_enabled()
        with ThreadPoolExecutor(1) as threads:
            assert not threads.submit(is_anomaly_enabled).result()
    assert (is_anomaly_enabled(), is_anomaly_check_nan_enabled()) == (False, True)
    set_detect_anomaly(True)
    assert is_anomaly_enabled()
    set_detect_anomaly(False)
    assert not is_anomaly_enabled()
    gc.collect()  # what errors that were raised still know
    assert not recording_state.WATCHED

"""Autocast as the dispatcher sees it: whose keys calls visit, and the dtype to cast to."""

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DispatchKey,
    ForceDispatchKeyGuard,
    Tensor,
    autocast,
    capture_dispatch_trace,
    get_autocast_dtype,
    is_autocast_enabled,
    local_dispatch_key_set,
)
from opdispatch.keys.dispatch_key_set import DEFAULT_EXCLUDED_SET, DispatchKeySet
from opdispatch.local_state.autocast_mode import AUTOCAST_STATE
from opdispatch.local_state.local_dispatch_key_set import LOCAL_STATE

K = DispatchKey
# What torch.get_autocast_dtype says.
DTYPES = {
    "cpu": "bfloat16",
    "cuda": "float16",
    "mtia": "float16",
    "maia": "bfloat16",
    "xpu": "float16",
    "ipu": "float16",
    "hpu": "bfloat16",
    "xla": "bfloat16",
    "mps": "float16",
    "privateuseone": "float16",
}


@pytest.mark.parametrize("device_type", DTYPES)
def test_a_device_has_its_own_autocast(device_type):
    name = "PrivateUse1" if device_type == "privateuseone" else device_type.upper()
    assert get_autocast_dtype(device_type).name == DTYPES[device_type]
    with autocast(device_type):
        assert local_dispatch_key_set()[1] == DEFAULT_EXCLUDED_SET.remove(K[f"Autocast{name}"])
        assert [d for d in DTYPES if is_autocast_enabled(d)] == [device_type]
    assert local_dispatch_key_set()[1] == DEFAULT_EXCLUDED_SET


def test_calls_visit_the_autocast_key_in_the_block_only(caller, define):
    op = define("t::f(Tensor x) -> ()", CPU=lambda x: None, AutocastCPU=lambda x: None)
    x = Tensor(np.ones(2))
    with capture_dispatch_trace() as lines:
        op(x)
        with autocast("cpu"):
            op(x)
            with autocast("cpu", enabled=False):
                op(x)
        autocast("cpu")(op)(x)
    below = ["AutogradCPU", "CPU"]
    assert [line.key for line in lines] == [*below, "AutocastCPU", *below, "AutocastCPU"]


def test_the_dtype_is_that_of_the_innermost_block():
    with autocast("cpu", dtype=np.float16):
        assert get_autocast_dtype("cpu") == np.float16
        with autocast("cpu"):
            assert get_autocast_dtype("cpu") == np.float16
    assert get_autocast_dtype("cpu").name == "bfloat16"


def test_leaving_restores_the_exact_words():
    words = DispatchKeySet.of(K.CPU), DispatchKeySet.of(K.AutogradCPU)
    with ForceDispatchKeyGuard(*words):
        with autocast("cpu", enabled=False):
            assert local_dispatch_key_set()[1] == words[1].add(K.AutocastCPU)
        assert local_dispatch_key_set() == words


@pytest.mark.parametrize("ask", [autocast, is_autocast_enabled, get_autocast_dtype])
def test_a_device_without_an_autocast_key_is_refused(ask):
    with pytest.raises(ArgumentError, match="autocast knows no device type 'meta'; it knows cpu"):
        ask("meta")


def test_a_block_that_ends_restores_its_own_device_alone():
    first, second = autocast("cpu", "float16"), autocast("cuda", "bfloat16")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert (is_autocast_enabled("cpu"), is_autocast_enabled("cuda")) == (False, True)
    assert get_autocast_dtype("cuda").name == "bfloat16"
    assert get_autocast_dtype("cpu").name == DTYPES["cpu"]
    second.__exit__(None, None, None)
    assert local_dispatch_key_set()[1] == DEFAULT_EXCLUDED_SET


def test_a_block_in_which_nothing_else_is_switched_puts_back_what_it_found():
    """The very state, which takes no time to make."""
    before = LOCAL_STATE.get(), AUTOCAST_STATE.get()
    with autocast("cpu"), autocast("cuda", enabled=False):
        pass
    assert LOCAL_STATE.get() is before[0]
    assert AUTOCAST_STATE.get() is before[1]
    assert get_autocast_dtype("cuda").name == DTYPES["cuda"]

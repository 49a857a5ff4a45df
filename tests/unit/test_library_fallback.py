"""``Library("_", "IMPL").fallback``: one kernel for a key of every operator."""

import numpy as np
import pytest

from opdispatch import (
    DispatchKey,
    DispatchKeySet,
    NoKernelError,
    RegistrationError,
    Tensor,
    fallthrough_kernel,
)

K = DispatchKey
X = np.ones(2)


def call(dispatcher, name, *args, **kwargs):
    return dispatcher.get_schema(f"t::{name}")(*args, **kwargs)


def test_a_fallback_serves_every_operator_that_has_no_kernel(lib, library, dispatcher, caller):
    for text in ("f(Tensor x, int n=1, *, int k=2) -> str", "g(Tensor x) -> str"):
        lib.define(text)
    lib.impl("g", lambda x: "its own", "Fake")
    seen = []

    def fallback(op, *args, **kwargs):
        seen.append((str(op.name), args, kwargs))
        return "fallback"

    x = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.Fake))
    library("_", "IMPL").fallback(fallback, "Fake")
    assert [call(dispatcher, "f", x, k=3), call(dispatcher, "g", x)] == ["fallback", "its own"]
    assert seen == [("t::f", (x,), {"k": 3})]  # without what has its default, as in PyTorch


def test_a_fallback_may_take_the_keys_and_redispatch(lib, library, dispatcher, caller):
    lib.define("f(Tensor x) -> str[]")
    lib.impl("f", lambda x: ["CPU"], "CPU")

    def fallback(keys, op, *args, **kwargs):
        return ["fallback", *op.redispatch(keys.remove(K.Fake), *args, **kwargs)]

    library("_", "IMPL", "Fake").fallback(fallback, with_keyset=True)
    x = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.Fake))
    assert call(dispatcher, "f", x) == ["fallback", "CPU"]


def test_a_fallback_may_be_a_fallthrough(lib, library, dispatcher, caller):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "CPU", "CPU")
    x = Tensor(X, keys=DispatchKeySet.of(K.CPU, K.Fake))
    with pytest.raises(NoKernelError):
        call(dispatcher, "f", x)
    with library("_", "IMPL") as fallbacks:
        fallbacks.fallback(fallthrough_kernel, "Fake")
        assert call(dispatcher, "f", x) == "CPU"
    with pytest.raises(NoKernelError):
        call(dispatcher, "f", x)


def test_a_fallback_is_for_every_namespace_and_for_one_key(lib, library):
    with pytest.raises(RegistrationError, match="not only for 't'") as caught:
        lib.fallback(lambda op: None, "Fake")
    assert 'Library("_", "IMPL")' in caught.value.hint
    with pytest.raises(RegistrationError, match="a fallback needs the dispatch key"):
        library("_", "IMPL").fallback(lambda op: None)
    with pytest.raises(RegistrationError, match="cannot implement"):
        library("_", "IMPL").impl("f", lambda x: x)

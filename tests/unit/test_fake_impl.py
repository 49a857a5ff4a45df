"""Kernels for tensors without elements: what they are registered for, and what they may ask."""

import numpy as np
import pytest

from opdispatch import (
    ArgumentError,
    DataDependentOutputError,
    DuplicateDefinitionError,
    Library,
    RegistrationError,
    Tensor,
    get_ctx,
    impl_abstract,
    ops,
    register_fake,
)
from opdispatch import array_api as xp
from opdispatch.fake_tensor import FakeTensorMode

X = Tensor(np.array([0.0, 1.0, 0.0]))


@pytest.fixture
def lib():
    with Library("faked", "DEF") as lib:
        lib.define("places(Tensor x) -> Tensor")
        lib.impl("places", lambda x: Tensor(np.flatnonzero(x.array)), "CPU")
        yield lib


def test_a_kernel_that_needs_a_size_says_so(lib):
    bounds = {}

    @register_fake("faked::places", lib=lib)
    def places(x):
        return xp.empty(get_ctx().new_dynamic_size(**bounds))

    assert get_ctx() is None
    with FakeTensorMode() as mode:
        fake = mode.from_tensor(X)
        with pytest.raises(DataDependentOutputError, match=r"faked::places returns dep.*fake ten"):
            ops.faked.places(fake)
        bounds |= {"min": -1}
        with pytest.raises(ArgumentError, match="min=-1 and max=None"):
            ops.faked.places(fake)
        assert get_ctx() is None
    with pytest.raises(DataDependentOutputError, match=r"faked::places.*tensors on meta have none"):
        ops.faked.places(X.to("meta"))
    assert get_ctx() is None


def test_a_kernel_is_for_an_operator_that_is_defined(lib):
    for register in (
        lambda: register_fake("faked::place", len, lib=lib),
        lambda: lib._register_fake("place", len),
    ):
        with pytest.raises(RegistrationError, match=r"no operator faked::place \(did you mean fak"):
            register()
    with pytest.raises(RegistrationError, match="no operator nowhere::f"):
        register_fake("nowhere::f")(len)
    assert "place" not in dir(ops.faked)


def test_an_operator_that_is_what_it_calls_needs_none(lib):
    lib.define("twice(Tensor x) -> Tensor")
    lib.impl("twice", lambda x: x * 2, "CompositeImplicitAutograd")
    with pytest.raises(RegistrationError, match=r"faked::twice has a CompositeImplicit"):
        register_fake("faked::twice", lambda x: x, lib=lib)
    assert ops.faked.twice(X.to("meta")).shape == (3,)


def test_the_newest_kernel_is_called_until_its_library_goes(lib):
    lib._register_fake("places", lambda x: xp.empty(2, device="meta"))
    on_meta = X.to("meta")
    with Library("faked", "FRAGMENT") as other:
        with pytest.raises(DuplicateDefinitionError, match=r"test_fake_impl.py:\d+"):
            register_fake("faked::places", len, lib=other, allow_override=False)
        with pytest.warns(FutureWarning, match="use register_fake"):
            impl_abstract("faked::places", lambda x: xp.empty(5, device="meta"), lib=other)
        assert ops.faked.places(on_meta).shape == (5,)
    assert ops.faked.places(on_meta).shape == (2,)

"""Closing a library: the registrations that it undoes."""

import gc

import numpy as np
import pytest

from opdispatch import (
    Library,
    OperatorNotFoundError,
    RegistrationError,
)

X = np.ones(2)


def test_closing_a_library_undoes_everything_it_registered(lib, library, dispatcher, caller):
    lib.define("f(Tensor x) -> str")
    lib.impl("f", lambda x: "f", "CPU")
    op = dispatcher.get_schema("t::f")
    assert op(X) == "f"
    lib.close()
    assert (dispatcher.operators(), dispatcher.libraries()) == ([], {})
    with pytest.raises(OperatorNotFoundError):
        op(X)
    lib.close()


def test_closing_is_one_publication(lib, dispatcher):
    for name in "abc":
        lib.define(f"{name}(Tensor x) -> Tensor")
        lib.impl(name, lambda x: x, "CPU")
    epoch = dispatcher.epoch
    lib.close()
    assert dispatcher.epoch == epoch + 1


def test_closing_leaves_what_others_registered(lib, library, dispatcher):
    lib.define("f(Tensor x) -> Tensor")
    other = library("t", "IMPL")
    other.impl("f", lambda x: x, "CPU")
    lib.close()
    assert [str(name) for name in dispatcher.find_dangling_impls()] == ["t::f"]
    other.close()
    assert dispatcher.operators() == []


def test_a_library_is_a_context_manager(library, dispatcher):
    with library("t", "DEF") as lib:
        lib.define("f(Tensor x) -> Tensor")
    assert (dispatcher.operators(), dispatcher.libraries()) == ([], {})


def test_a_library_that_is_forgotten_stays(library, dispatcher):
    library("t", "DEF").define("f(Tensor x) -> Tensor")
    gc.collect()
    assert [str(name) for name in dispatcher.operators()] == ["t::f"]
    assert list(dispatcher.libraries()) == ["t"]


def test_pytorchs_name_for_closing_works(lib, dispatcher):
    lib.define("f(Tensor x) -> Tensor")
    lib._destroy()
    assert dispatcher.operators() == []


def test_a_closed_library_registers_nothing_more(dispatcher):
    library = Library("closed", "DEF", dispatcher=dispatcher)
    library.close()
    for register in (
        lambda: library.define("f(Tensor x) -> Tensor"),
        lambda: library.impl("f", lambda x: x, "CPU"),
        lambda: library.fallback(lambda op, x: x, "CPU"),
    ):
        with pytest.raises(RegistrationError, match="has been closed"):
            register()
    assert dispatcher.operators() == []


def test_registration_during_close_is_undone(lib, dispatcher, monkeypatch):
    lib.define("f(Tensor x) -> Tensor")
    register = dispatcher.register_impl

    def close_first(*args, **kwargs):
        lib.close()
        return register(*args, **kwargs)

    monkeypatch.setattr(dispatcher, "register_impl", close_first)
    with pytest.raises(RegistrationError, match="the library of 't' has been closed"):
        lib.impl("f", lambda x: x, "CPU")
    assert dispatcher.operators() == []

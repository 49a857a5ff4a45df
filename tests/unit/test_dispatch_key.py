"""Dispatch keys: generated names, the parts of a runtime key, and the parser."""

import pytest

from opdispatch import BackendComponent, DispatchKey, DispatchKeyError, parse_dispatch_key
from opdispatch.keys.dispatch_key import (
    ALIAS_KEYS,
    FUNCTIONALITIES,
    FUNCTIONALITY_BIT,
    NUM_BACKENDS,
    PER_BACKEND_FUNCTIONALITIES,
    is_alias_key,
    is_per_backend_functionality,
    to_backend_component,
    to_functionality_key,
    to_runtime_key,
)

K = DispatchKey


def test_every_per_backend_functionality_has_a_key_for_every_backend():
    names = {
        f"{prefix}{backend.name}"
        for prefix in ("", "Quantized", "Sparse", "SparseCsr", "NestedTensor", "Autograd")
        for backend in BackendComponent
    }
    assert names < set(K.__members__)


def test_a_runtime_key_is_its_functionality_on_its_backend():
    for functionality in PER_BACKEND_FUNCTIONALITIES:
        for backend in BackendComponent:
            key = to_runtime_key(functionality, backend)
            assert to_functionality_key(key) is functionality
            assert to_backend_component(key) is backend


def test_a_key_that_no_backend_shares_is_its_own_runtime_key():
    assert to_runtime_key(K.Python, BackendComponent.CUDA) is K.Python
    assert to_runtime_key(K.Python, None) is K.Python
    assert to_functionality_key(K.Python) is K.Python
    assert to_backend_component(K.Python) is None


def test_without_a_backend_a_key_is_a_marker_that_says_so():
    marker = to_runtime_key(K.Quantized, None)
    assert marker is K.StartOfQuantizedBackends
    assert str(marker) == "QuantizedUndefined"
    assert to_functionality_key(marker) is K.Quantized


def test_an_alias_belongs_to_no_functionality():
    assert {to_functionality_key(key) for key in ALIAS_KEYS} == {K.Undefined}
    assert to_backend_component(K.Autograd) is None


def test_only_the_six_aliases_are_aliases():
    assert [key.name for key in K if is_alias_key(key)] == [
        "Autograd",
        "CompositeImplicitAutograd",
        "FuncTorchBatchedDecomposition",
        "CompositeImplicitAutogradNestedTensor",
        "CompositeExplicitAutograd",
        "CompositeExplicitAutogradNonFunctional",
    ]
    assert list(ALIAS_KEYS) == [key for key in K if is_alias_key(key)]


def test_every_functionality_has_a_bit_of_its_own_above_the_backends():
    bits = [FUNCTIONALITY_BIT[key] for key in FUNCTIONALITIES]
    assert bits == list(range(NUM_BACKENDS, NUM_BACKENDS + len(FUNCTIONALITIES)))
    assert bits[-1] == 63


def test_per_backend_functionalities_are_distinguished():
    assert is_per_backend_functionality(K.Sparse)
    assert not is_per_backend_functionality(K.SparseCPU)
    assert not is_per_backend_functionality(K.FPGA)


def test_keys_that_2_13_dropped_stand_behind_all_others():
    assert (K.ORT, K.Named) == (156, 157)
    assert FUNCTIONALITIES[-2:] == (K.ORT, K.Named)
    assert not is_alias_key(K.ORT)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("CatchAll", K.Undefined),
        ("DefaultBackend", K.CompositeExplicitAutograd),
        ("Autocast", K.AutocastCUDA),
        ("CPUTensorId", K.CPU),
        ("PrivateUse1_PreAutograd", K.AutogradPrivateUse1),
    ],
)
def test_names_of_older_releases_parse(old, new):
    assert parse_dispatch_key(old) is new


def test_every_key_but_the_markers_is_parsed_by_its_name():
    markers = [key for key in K if key.name.startswith(("StartOf", "EndOf"))]
    for key in set(K) - set(markers):
        assert parse_dispatch_key(key.name) is key


@pytest.mark.parametrize("name", ["", "cpu", "Cuda", "StartOfDenseBackends", "EndOfAliasKeys"])
def test_another_name_is_refused_and_the_error_shows_it(name):
    with pytest.raises(DispatchKeyError, match="there is no dispatch key") as caught:
        parse_dispatch_key(name)
    assert repr(name) in str(caught.value)
    assert caught.value.facts == {"key": name}

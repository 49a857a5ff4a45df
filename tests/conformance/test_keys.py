"""Dispatch keys and key-set arithmetic, value by value as PyTorch has them.

``golden/keys.json.gz`` was taken by ``record_keys.py``.
"""

import numpy as np
import pytest
from golden_file import read_golden

from opdispatch import DispatchKey, DispatchKeyError, DispatchKeySet, Tensor, parse_dispatch_key
from opdispatch.keys.dispatch_key import ALIAS_KEYS, BackendComponent, is_alias_key
from opdispatch.keys.dispatch_key_set import (
    AUTOGRADOTHER_BACKENDS,
    DEFAULT_EXCLUDED_SET,
    DEFAULT_INCLUDED_SET,
    RUNTIME_KEYS,
    get_backend_key_set_from_autograd,
    is_included_in_alias,
)

GOLDEN = read_golden("keys.json.gz")
KEYS = GOLDEN["keys"]
VECTORS = GOLDEN["vectors"]
# See Note [Named and ORT are extra]: everything else is PyTorch's.
EXTRA = {DispatchKey.ORT, DispatchKey.Named}


def test_every_key_has_the_name_and_the_value_of_pytorch():
    ours = {k.value: str(k) for k in DispatchKey if k not in EXTRA}
    theirs = {k["value"]: k["name"] for k in KEYS}
    theirs |= {int(value): name for value, name in GOLDEN["markers"].items()}
    ours.pop(DispatchKey.EndOfFunctionalityKeys.value)
    assert ours == theirs


def test_aliases_are_the_ones_of_pytorch():
    assert [str(key) for key in ALIAS_KEYS] == [k["name"] for k in KEYS if k["alias"]]
    assert not any(is_alias_key(key) for key in EXTRA)


@pytest.mark.parametrize("alias", GOLDEN["aliases"])
def test_an_alias_has_the_members_that_pytorch_gives_it(alias):
    # An alias has no bits, so PyTorch finds all aliases in each; here no alias is in another.
    keys = [parse_dispatch_key(k["name"]) for k in KEYS]
    members = [str(k) for k in keys if is_included_in_alias(k, parse_dispatch_key(alias))]
    known = set(GOLDEN["aliases"])
    assert members == [name for name in GOLDEN["aliases"][alias] if name not in known]


def test_every_name_that_pytorch_parses_is_parsed():
    for known in KEYS:
        assert parse_dispatch_key(known["name"]) == known["value"]
    # It refuses some of its own names, which are accepted here.
    refused = {k["name"] for k in KEYS if not k["parses"]}
    assert {"QuantizedHIP", "SparseXLA", "AutogradHIP", "AutogradVE"} <= refused


@pytest.mark.parametrize("marker", ["StartOfDenseBackends", "EndOfFunctionalityKeys"])
def test_no_marker_is_parsed(marker):
    with pytest.raises(DispatchKeyError):
        parse_dispatch_key(marker)


def test_every_key_has_the_bits_of_pytorch():
    assert {k["name"]: DispatchKeySet.of(DispatchKey(k["value"])).raw_repr() for k in KEYS} == {
        k["name"]: k["bits"] for k in KEYS
    }


def test_full_after_every_key_is_what_pytorch_says():
    assert {
        k["name"]: DispatchKeySet.full_after(DispatchKey(k["value"])).raw_repr() for k in KEYS
    } == {k["name"]: k["full_after"] for k in KEYS}


def test_the_backends_of_every_autograd_key_are_the_ones_of_pytorch():
    ours = {
        k["name"]: get_backend_key_set_from_autograd(DispatchKey(k["value"])).raw_repr()
        for k in KEYS
    }
    assert ours == {k["name"]: k["backends_of_autograd"] for k in KEYS}


def test_the_full_set_lists_every_runtime_key_in_the_order_of_pytorch():
    full = DispatchKeySet.full()
    assert full.raw_repr() == GOLDEN["full"]["bits"]
    assert [str(key) for key in full] == GOLDEN["full"]["names"]
    own = [str(key) for key in RUNTIME_KEYS if key not in EXTRA]
    assert own == ["Undefined", *GOLDEN["full"]["names"]]


def test_the_sets_with_a_name_are_the_ones_of_pytorch():
    assert AUTOGRADOTHER_BACKENDS.raw_repr() == GOLDEN["autogradother_backends"]
    local = [DEFAULT_INCLUDED_SET.raw_repr(), DEFAULT_EXCLUDED_SET.raw_repr()]
    assert local == GOLDEN["local_defaults"]


def test_a_plain_cpu_tensor_has_the_keys_of_one_in_pytorch():
    assert Tensor(np.ones(1)).key_set.raw_repr() == GOLDEN["plain_cpu_tensor"]


@pytest.mark.parametrize("operation", ["or", "and", "sub", "add", "remove", "has"])
def test_key_set_arithmetic_gives_what_pytorch_gives(operation):
    for vector in VECTORS:
        a, b = DispatchKeySet(vector["a"]), DispatchKeySet(vector["b"])
        key = parse_dispatch_key(vector["key"])
        result = {
            "or": a | b,
            "and": a & b,
            "sub": a - b,
            "add": a.add(key),
            "remove": a.remove(key),
            "has": a.has(key),
        }[operation]
        if isinstance(result, DispatchKeySet):
            result = result.raw_repr()
        assert result == vector[operation], (str(a), str(b), key.name)


def test_a_set_lists_its_keys_as_pytorch_does():
    for vector in VECTORS:
        keys = DispatchKeySet(vector["a"])
        assert [str(key) for key in keys] == vector["names"]
        assert str(keys) == f"DispatchKeySet({', '.join(vector['names'])})"


def test_the_highest_key_of_a_set_is_the_one_of_pytorch():
    for vector in VECTORS:
        highest = DispatchKeySet(vector["a"]).highest_priority_key
        assert (highest.value, str(highest)) == (vector["highest"], vector["highest_name"])


def test_the_vectors_are_of_many_kinds():
    sizes = {vector["a"].bit_count() for vector in VECTORS}
    assert {0, 1, 2, 3} < sizes
    assert max(sizes) > 30
    backends = {DispatchKeySet(vector["a"]).highest_backend_key for vector in VECTORS}
    assert backends >= {None, *BackendComponent}

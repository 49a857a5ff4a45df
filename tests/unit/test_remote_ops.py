"""`session.ops`: names become calls."""

from __future__ import annotations

import copy

import pytest

from opdispatch_client.remote_ops import RemoteOps


def _record(operator, /, *args, **kwargs):
    return operator, args, kwargs


def test_attributes_make_the_name_of_an_operator():
    ops = RemoteOps(_record)
    assert ops.image.sobel(1, normalize=True) == ("image::sobel", (1,), {"normalize": True})
    assert ops.math.add.Scalar(1) == ("math::add.Scalar", (1,), {})
    assert ops.math.add.default(1) == ("math::add", (1,), {})
    assert repr(ops.math.add.Scalar) == "<RemoteOperator math::add.Scalar>"


def test_no_name_is_taken():
    """An operator's own names and its arguments' may be any."""
    ops = RemoteOps(_record)
    assert ops._call._name(self=1, operator=2) == ("_call::_name", (), {"self": 1, "operator": 2})


def test_an_overload_has_no_overloads():
    with pytest.raises(AttributeError, match="names an overload already"):
        RemoteOps(_record).math.add.Scalar.out  # noqa: B018


def test_special_names_are_no_operators():
    for part in (RemoteOps(_record), RemoteOps(_record).a, RemoteOps(_record).a.b):
        assert not hasattr(part, "__array__")
        with pytest.raises(TypeError):
            len(part)
        copy.copy(part)


def test_completion_lists_what_there_is():
    ops = RemoteOps(_record, lambda: ["image::blur", "image::blur.out", "math::add"])
    assert dir(ops) == ["image", "math"]
    assert dir(ops.image) == ["blur"]
    assert dir(ops.image.blur) == ["out"]
    assert dir(RemoteOps(_record)) == []

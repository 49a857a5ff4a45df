"""Which names are suggested, and among how many."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

import pytest

from opdispatch.dispatch.similar_names import similar_operators
from opdispatch.schema.function_schema import OperatorName


def are_defined(operator: OperatorName) -> bool:
    return operator.name != "image::undefined"


def operators(*names: str) -> list[OperatorName]:
    return [OperatorName(name) for name in names]


MANY = operators(*(f"n{i}::sobel" for i in range(5000)))


def test_in_a_small_registry_the_namespace_may_be_wrong_too():
    assert similar_operators("imgae::sobel", operators("image::sobel"), are_defined) == [
        "image::sobel"
    ]


def test_undefined_operator_is_not_suggested():
    both = operators("image::undefined", "image::undefine")
    assert similar_operators("image::undefind", both, are_defined) == ["image::undefine"]


def test_in_a_large_one_the_beginning_must_be_right():
    everything = [*MANY, *operators("image::sobel", "image::blur")]
    assert similar_operators("image::soble", everything, are_defined) == ["image::sobel"]
    assert similar_operators("imgae::sobel", everything, are_defined) == []


def test_many_are_compared_with_nothing_at_once(monkeypatch: pytest.MonkeyPatch):
    compared = []

    def noting(name: str, names: Sequence[str], n: int) -> list[str]:
        compared.append(len([*names]))
        return []

    monkeypatch.setattr(difflib, "get_close_matches", noting)
    similar = operators(*(f"image::sobel{i}" for i in range(5000)))
    assert similar_operators("image::soble", similar, are_defined) == []
    assert similar_operators("image::" + "s" * 10_000, similar[:10], are_defined) == []
    similar_operators("image::soble", similar[:1000], are_defined)
    assert compared == [1000]

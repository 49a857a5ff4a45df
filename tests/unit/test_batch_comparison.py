"""Differences between batches of registrations."""

from __future__ import annotations

import pytest

from opdispatch_server.daemon.libraries import batch_comparison
from opdispatch_server.daemon.libraries.batch_comparison import find_difference
from opdispatch_wire.v1 import interpreter_pb2 as pb


def batch(*, sha256: str = "", documentation: str = "", key: str = "CPU") -> pb.RegistrationBatch:
    made = pb.RegistrationBatch(sha256=sha256)
    made.registrations.add(site="a.py:1").namespace.namespace = "a"
    made.registrations.add(site="a.py:2").definition.schema = "a::f(Tensor x) -> Tensor"
    kernel = made.registrations.add(site="a.py:3").implementation
    kernel.operator, kernel.key = "a::f", key
    kernel.kernel.documentation = documentation
    fallback = made.registrations.add(site="a.py:4").fallback
    fallback.key = "Fake"
    fallback.kernel.documentation = documentation
    return made


def without_last(count: int) -> pb.RegistrationBatch:
    made = batch()
    del made.registrations[-count:]
    return made


def test_equal_batches_do_not_differ():
    assert find_difference(batch(), batch()) == ""
    assert find_difference(batch(documentation="one"), batch(documentation="two")) == ""
    assert find_difference(batch(sha256="aa"), batch()) == ""


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (
            batch(key="CUDA"),
            "it registers a kernel of a::f for CUDA (at a.py:3), where a kernel of a::f for CPU "
            "(at a.py:3) is registered",
        ),
        (without_last(1), "it does not register a fallback for Fake (at a.py:4)"),
        (without_last(2), "it does not register a kernel of a::f for CPU (at a.py:3)"),
        (
            batch(sha256="b" * 64),
            "it imports a file with the SHA-256 bbbbbbbbbbbb, and the registered one has "
            "aaaaaaaaaaaa",
        ),
    ],
)
def test_first_difference_is_reported(other: pb.RegistrationBatch, words: str):
    assert find_difference(batch(sha256="a" * 64), other) == words


def test_additional_registration_is_reported():
    assert find_difference(without_last(3), batch()) == (
        "it also registers a::f(Tensor x) -> Tensor (at a.py:2)"
    )


def test_batches_that_are_the_same_are_compared_as_a_whole(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_comparison, "_comparable", None)  # for each registration
    assert find_difference(batch(), batch()) == ""

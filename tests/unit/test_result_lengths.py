"""Results that are too long are found out before they are packed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from opdispatch_server.worker.execution.result_lengths import check_lengths
from opdispatch_wire.errors import MessageTooLargeError
from opdispatch_wire.values import value_to_proto


@pytest.mark.parametrize(
    "value",
    [
        "x" * 1000,
        [1] * 2000,
        [0.5] * 2000,
        [True] * 2000,
        [1j] * 2000,
        ["text" * 10] * 50,
        [[1] * 2000, [2] * 2000],
        [None] * 2000,
        [1, "a"] * 1000,
        (3,) * 2000,
    ],
)
def test_length_is_never_taken_for_more_than_it_is(value):
    size = value_to_proto(value).ByteSize()
    check_lengths([value], size, "it")
    with pytest.raises(MessageTooLargeError, match="it has"):
        check_lengths([value], size // 10, "it")


def test_tensors_do_not_count():
    check_lengths([np.zeros(1000), [np.zeros(1000)] * 3, None, 5], 1, "it")


def test_recursive_lists_pass_the_length_check():
    loop: list[Any] = []
    loop.append(loop)
    deep: list[Any] = []
    shared: list[Any] = []
    for _ in range(3000):
        deep, shared = [deep], [shared, shared]
    check_lengths([loop, deep, shared, (loop, {"a": loop})], 1, "it")

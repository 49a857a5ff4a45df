"""No full collection begins while much is being made, and what lasts is left alone later."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from opdispatch_server.full_collections import FullCollections


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """With little that is gone through: one begins when that has grown by a quarter."""
    thresholds = gc.get_threshold()
    gc.freeze()
    gc.collect()
    gc.set_threshold(50, 2, 2)
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)


def full_collections() -> int:
    return int(gc.get_stats()[2]["collections"])


def make(count: int = 10_000) -> list[list[object]]:
    return [[i] for i in range(count)]


def test_they_begin_by_themselves():
    before = full_collections()
    kept = make()
    assert full_collections() > before
    assert kept


def test_none_begins_while_they_are_put_off():
    collections = FullCollections()
    before = full_collections()
    with collections.put_off():
        kept = make()
        with collections.put_off():
            kept += make()
        kept += make()
    assert full_collections() == before
    assert gc.get_threshold() == (50, 2, 2)
    kept += make()
    assert full_collections() > before


def test_blocks_may_overlap():
    collections = FullCollections()
    first, second = collections.put_off(), collections.spared()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    before = full_collections()
    kept = make()
    assert full_collections() == before
    second.__exit__(None, None, None)
    assert gc.get_threshold() == (50, 2, 2)
    assert kept


def test_objects_made_while_spared_are_frozen_and_freed_by_reference():
    collections = FullCollections()
    with collections.spared():
        kept = make()
    frozen = gc.get_freeze_count()
    assert frozen > len(kept)
    kept.clear()
    assert gc.get_freeze_count() <= frozen - 10_000


def test_an_error_ends_a_block_as_any_other_end():
    collections = FullCollections()
    with pytest.raises(ValueError, match="import"), collections.spared():
        raise ValueError("import")
    assert gc.get_threshold() == (50, 2, 2)


def test_thresholds_that_users_set_meanwhile_stay():
    with FullCollections().put_off():
        gc.set_threshold(60, 3, 3)
    assert gc.get_threshold() == (60, 3, 3)

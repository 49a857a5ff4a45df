"""Records of libraries survive being written, and nothing else is taken for one."""

from __future__ import annotations

import json
from datetime import UTC

import pytest
from hypothesis import given
from hypothesis import strategies as st

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.environments.library_home import LibraryHome
from opdispatch_server.daemon.state.journal_record import (
    LibraryRecord,
    VersionRecord,
    library_record_from_text,
    library_record_to_text,
)

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=5,
)
homes = st.builds(LibraryHome, st.lists(st.text()).map(tuple), st.text(), st.text(), st.booleans())
versions = st.builds(
    VersionRecord,
    version=st.integers(1, 1000),
    source=st.builds(LibrarySource, st.text(), st.text(), st.booleans(), homes),
    loaded_at=st.datetimes(timezones=st.just(UTC)),
    operators=st.lists(st.text()).map(tuple),
    has_fallbacks=st.booleans(),
    options=st.dictionaries(st.text(), json_values),
)


@st.composite
def records(draw: st.DrawFn) -> LibraryRecord:
    kept = draw(st.lists(versions, max_size=3, unique_by=lambda version: version.version))
    active = draw(st.sampled_from(kept)).version if kept else 0
    numbers = st.integers(0, 2000)
    return LibraryRecord(draw(st.text()), draw(numbers), draw(numbers), active, tuple(kept))


@given(records())
def test_a_record_is_read_as_it_was_written(record: LibraryRecord):
    assert library_record_from_text(record.name, library_record_to_text(record)) == record


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"last_version": "1"}, "last_version is '1', expected int"),
        ({"versions": None}, "versions is None, expected list"),
        ({"active": 2}, r"active version 2 is none of \[1\]"),
        ({"versions": [{"version": 1}]}, "label is None, expected str"),
        ({"versions": [7]}, "label is None, expected str"),
    ],
)
def test_malformed_record_raises_value_error(change: dict[str, object], complaint: str):
    version = {"version": 1, "label": "a.py", "sha256": "0", "is_module": False}
    version |= {"home": LibraryHome().to_json()}
    version |= {"loaded_at": "2026-01-01T00:00:00+00:00", "operators": [], "has_fallbacks": False}
    version |= {"options": {}}
    value = {"last_version": 1, "position": 1, "active": 1, "versions": [version]}
    library_record_from_text("a", json.dumps(value))
    with pytest.raises(ValueError, match=complaint):
        library_record_from_text("a", json.dumps(value | change))

"""The journal's record of a library: enough to load it again, as values and as text.

A record is JSON. Reading checks it like input from a stranger: a journal with invalid content is
damaged, and must not be interpreted by guessing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.environments.library_home import LibraryHome


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """One version of a library.

    ``operators`` are those that it had when published, and so those that are missing while it is
    not loaded; ``has_fallbacks`` says whether it had kernels for all operators. ``options`` is what
    the load request asked for, in types that JSON has.
    """

    version: int
    source: LibrarySource
    loaded_at: datetime
    operators: tuple[str, ...] = ()
    has_fallbacks: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)


class LibraryRecord(NamedTuple):
    """One library: its existing versions, oldest first; ``active`` is one of them.

    ``position`` orders the libraries as they were published: for one slot, the newest kernel wins.
    An unloaded library keeps a record without versions: its next version is still ``last_version +
    1``.
    """

    name: str
    last_version: int
    position: int = 0
    active: int = 0
    versions: tuple[VersionRecord, ...] = ()


def library_record_to_text(record: LibraryRecord) -> str:
    """Return the record as JSON; equal records have equal texts."""
    versions = [
        {
            "version": version.version,
            "label": version.source.label,
            "sha256": version.source.sha256,
            "is_module": version.source.is_module,
            "home": version.source.home.to_json(),
            "loaded_at": version.loaded_at.isoformat(),
            "operators": list(version.operators),
            "has_fallbacks": version.has_fallbacks,
            "options": dict(version.options),
        }
        for version in record.versions
    ]
    value = {
        "last_version": record.last_version,
        "position": record.position,
        "active": record.active,
        "versions": versions,
    }
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def library_record_from_text(name: str, text: str) -> LibraryRecord:
    """Return the record of library ``name``. Raises ValueError for an invalid text."""
    value = json.loads(text)
    versions = tuple(_version_from_json(item) for item in _take(value, "versions", list))
    active = _take(value, "active", int)
    numbers = [version.version for version in versions]
    if numbers and active not in numbers:
        raise ValueError(f"its active version {active} is none of {numbers}")
    if len(set(numbers)) != len(numbers):
        raise ValueError(f"it has a version twice: {numbers}")
    last_version, position = _take(value, "last_version", int), _take(value, "position", int)
    return LibraryRecord(name, last_version, position, active, versions)


def _version_from_json(value: object) -> VersionRecord:
    source = LibrarySource(
        _take(value, "label", str),
        _take(value, "sha256", str),
        _take(value, "is_module", bool),
        LibraryHome.from_json(_take(value, "home", dict)),
    )
    return VersionRecord(
        _take(value, "version", int),
        source,
        datetime.fromisoformat(_take(value, "loaded_at", str)),
        tuple(_take(value, "operators", list)),
        _take(value, "has_fallbacks", bool),
        _take(value, "options", dict),
    )


def _take(value: object, key: str, kind: type) -> Any:
    found = value.get(key) if isinstance(value, dict) else None
    if type(found) is not kind:
        raise ValueError(f"its {key} is {found!r}, expected {kind.__name__}")
    return found

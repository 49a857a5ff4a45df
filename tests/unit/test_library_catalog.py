"""The daemon's catalog of libraries by name."""

from __future__ import annotations

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.libraries.catalog import GONE_REMEMBERED, LibraryCatalog
from opdispatch_server.daemon.libraries.version import LibraryVersion, VersionState


def version_of(name: str, number: int, state: VersionState) -> LibraryVersion:
    version = LibraryVersion(name, number, number, LibrarySource(f"{name}.py", "0" * 64))
    version.expect((f"{name}::run", f"{name}::run.out"), has_fallbacks=False)
    version.state = state
    return version


def test_a_version_that_waits_is_found_by_its_operators():
    catalog = LibraryCatalog()
    waiting = version_of("image", 1, VersionState.WAITING)
    catalog.add(waiting)
    catalog.add(version_of("sound", 1, VersionState.ACTIVE))
    assert catalog.find_waiting("image::run") is waiting
    assert catalog.find_waiting("image::run.out") is waiting
    assert catalog.find_waiting("image::walk") is None
    assert catalog.find_waiting("sound::run") is None


def test_waiting_version_is_found_below_a_kept_one():
    """It was brought back, and its interpreter died before the other one was struck off."""
    catalog = LibraryCatalog()
    waiting = version_of("image", 1, VersionState.WAITING)
    catalog.set_versions("image", [waiting, version_of("image", 2, VersionState.KEPT)])
    assert catalog.find_waiting("image::run") is waiting
    assert catalog.newest() == [waiting]


def test_of_operators_that_are_gone_the_latest_are_remembered():
    catalog = LibraryCatalog()
    catalog.remember_gone((f"old::op{i}" for i in range(GONE_REMEMBERED)), "unloaded")
    catalog.remember_gone((f"new::op{i}" for i in range(GONE_REMEMBERED // 2)), "replaced")
    assert catalog.explain_absence("new::op0") == "replaced"
    assert catalog.explain_absence("old::op0") == ""
    assert catalog.explain_absence(f"old::op{GONE_REMEMBERED - 1}") == "unloaded"
    catalog.remember_gone((f"more::op{i}" for i in range(5 * GONE_REMEMBERED)), "unloaded")
    assert catalog.explain_absence("more::op0") == "unloaded"
    assert catalog.explain_absence("new::op0") == ""

"""What the daemon knows of libraries by name."""

from __future__ import annotations

from opdispatch_server.libraries.library_catalog import LibraryCatalog
from opdispatch_server.libraries.library_version import LibrarySource, LibraryVersion, VersionState


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


def test_it_is_found_below_one_that_is_about_to_go():
    """It was brought back, and its interpreter died before the other one was struck off."""
    catalog = LibraryCatalog()
    waiting = version_of("image", 1, VersionState.WAITING)
    catalog.set_versions("image", [waiting, version_of("image", 2, VersionState.KEPT)])
    assert catalog.find_waiting("image::run") is waiting
    assert catalog.newest() == [waiting]

"""Libraries come back in an order in which their kernels are as they were."""

from __future__ import annotations

import asyncio

from opdispatch_server.daemon.environments.import_source import LibrarySource
from opdispatch_server.daemon.libraries.journal_replay import find_related, restore_in_order
from opdispatch_server.daemon.libraries.version import LibraryVersion


def library(name: str, *operators: str, fallbacks: bool = False) -> LibraryVersion:
    version = LibraryVersion(name, 1, 1, LibrarySource(f"{name}.py", "0"))
    version.expect(operators, has_fallbacks=fallbacks)
    return version


class Interpreters:
    """Loads what is asked for when ``open`` says so, and notes in what order."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.loaded: list[str] = []
        self.failed: list[str] = []
        self.needs: dict[str, str] = {}
        self._gates: dict[str, asyncio.Event] = {}

    def hold(self, name: str) -> None:
        self._gates[name] = asyncio.Event()

    def open(self, name: str) -> None:
        self._gates[name].set()

    async def recover(self, version: LibraryVersion, last_try: bool) -> bool:
        self.begun.append(version.name)
        if version.name in self._gates:
            await self._gates[version.name].wait()
        if self.needs.get(version.name, version.name) not in (version.name, *self.loaded):
            if last_try:
                self.failed.append(version.name)
            return last_try
        self.loaded.append(version.name)
        return True


def test_libraries_are_related_by_operators_and_fallbacks():
    earlier = [library("a", "n::f"), library("b", "n::g"), library("c", fallbacks=True)]
    assert find_related(library("d", "n::g", "n::h"), earlier) == [1]
    assert find_related(library("d", "n::f", fallbacks=True), earlier) == [0, 2]
    assert find_related(library("d", "n::h"), earlier) == []
    assert find_related(library("d", "n::f.other"), earlier) == [0]  # overloads have an order


async def test_related_libraries_are_loaded_one_after_the_other_and_others_at_once():
    interpreters = Interpreters()
    interpreters.hold("a")
    versions = [library("a", "n::f"), library("b", "n::f"), library("c", "n::g")]
    restoring = asyncio.create_task(restore_in_order(versions, interpreters.recover))
    while interpreters.loaded != ["c"]:
        await asyncio.sleep(0)
    assert interpreters.begun == ["a", "c"]
    interpreters.open("a")
    await restoring
    assert interpreters.loaded == ["c", "a", "b"]


async def test_one_that_needs_an_earlier_one_is_tried_again_and_those_above_it_wait():
    interpreters = Interpreters()
    interpreters.hold("slow")
    interpreters.needs = {"needy": "slow"}
    versions = [library("slow", "s::f"), library("needy", "n::f"), library("above", "n::f")]
    restoring = asyncio.create_task(restore_in_order(versions, interpreters.recover))
    while interpreters.begun != ["slow", "needy"]:
        await asyncio.sleep(0)
    interpreters.open("slow")
    await restoring
    assert interpreters.loaded == ["slow", "needy", "above"]
    assert interpreters.failed == []


async def test_one_that_fails_with_all_others_there_fails_once_and_for_good():
    interpreters = Interpreters()
    interpreters.needs = {"b": "nowhere"}
    versions = [library("a"), library("b"), library("c")]
    await restore_in_order(versions, interpreters.recover)
    assert interpreters.failed == ["b"]
    assert sorted(interpreters.loaded) == ["a", "c"]

"""Replay the journal when the daemon starts: load the libraries that it names.

Note [The order of restoration]
    For one slot, the kernel that was published last wins, and overloads of one name are tried in
    order of definition. So libraries that touch the same names, and any two that register
    fallbacks, are loaded one after the other, in the order in which they were published; all others
    are loaded concurrently. A library that fails to load may have needed another one during its
    import: it is tried again when all libraries before it are loaded, and later libraries that
    touch its names wait for that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence

from opdispatch_server.daemon.libraries.version import LibraryVersion

Recover = Callable[[LibraryVersion, bool], Awaitable[bool]]
"""Loads a version, or fails, for good if this is the last try; returns whether that is settled."""

Tasks = Sequence[asyncio.Task[None]]


async def restore_in_order(versions: Sequence[LibraryVersion], recover: Recover) -> None:
    """Load ``versions``, which are in order of publication, each as soon as that order allows."""
    tasks: list[asyncio.Task[None]] = []
    for place, version in enumerate(versions):
        related = [tasks[n] for n in find_related(version, versions[:place])]
        tasks.append(asyncio.create_task(_restore(version, tuple(tasks), related, recover)))
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def find_related(version: LibraryVersion, earlier: Iterable[LibraryVersion]) -> list[int]:
    """Return the indices of ``earlier`` versions with overloads or kernels of the same names."""
    return [place for place, other in enumerate(earlier) if version.shares_names_with(other)]


async def _restore(
    version: LibraryVersion, earlier: Tasks, related: Tasks, recover: Recover
) -> None:
    await _wait(related)
    unfinished = [task for task in earlier if not task.done()]
    if await recover(version, not unfinished) or not unfinished:
        return
    await _wait(unfinished)
    await recover(version, True)


async def _wait(tasks: Tasks) -> None:
    if tasks:
        await asyncio.wait(tasks)

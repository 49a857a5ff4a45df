"""A remote operator that is held while its library goes: our error, then the next of its name."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch_client import aio
from tests.service.conftest import WriteLibrary
from tests.service.libraries import constant
from tests.service.running_daemon import RunningDaemon

X = np.zeros(2)


def test_held_handle_raises_while_unloaded_and_follows_the_next_load(
    shared: oc.Session, write_library: WriteLibrary
):
    shared.load(write_library("const", constant(1)))
    get = shared.ops.const.get
    assert get(X) == 1
    shared.unload("const")
    for _ in range(3):
        with pytest.raises(oc.OperatorNotFoundError) as caught:
            get(X)
        assert "const::get" in str(caught.value)
        assert caught.value.hint == "library 'const', which had it, was unloaded"
    shared.load(write_library("other", constant(2)), interpreter="worker-2")
    assert get(X) == 2


def test_held_asyncio_handle_raises_while_unloaded_and_follows_the_next_load(
    shared_daemon: RunningDaemon, write_library
):
    async def story() -> None:
        async with aio.connect(shared_daemon.address) as session:
            await session.load(write_library("const", constant(1)))
            get = session.ops.const.get
            assert await get(X) == 1
            await session.unload("const")
            with pytest.raises(oc.OperatorNotFoundError, match="was unloaded"):
                await get(X)
            await session.load(write_library("const", constant(3)))
            assert await get(X) == 3
            await session.unload("const")

    asyncio.run(story())

"""Deadlines hold while a daemon that is stopped takes nothing of a large argument."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon, wait_for
from tests.service.test_direct_calls import stopped

SHARED_WORKERS = 1
X = np.arange(3.0)
# A call that a stopped daemon does not answer is waited for so long, in seconds.
MOMENT = 0.2


def scales(session: oc.Session) -> bool:
    with suppress(oc.DeadlineExceededError):
        return np.array_equal(session.ops.image.scale(X, 2.0), X * 2)
    return False


def test_a_deadline_holds_for_an_argument_that_the_daemon_does_not_take(loaded: RunningDaemon):
    large = np.zeros(8_000_000)
    with loaded.connect(direct=False, timeout=1) as session:
        session.ops.image.scale(X, 1.0)
        with stopped(loaded):
            with pytest.raises(oc.DeadlineExceededError):
                session.with_options(timeout=MOMENT).ops.image.scale(large, 1.0)
            future = session.submit("image::scale", large, 1.0, timeout=MOMENT)
            with pytest.raises(oc.DeadlineExceededError):
                future.result()
        # It has first to take what was sent, which a busy machine may not do in time.
        assert wait_for(lambda: scales(session))


async def test_a_deadline_of_asyncio_holds_so_too(loaded: RunningDaemon):
    large = np.zeros(8_000_000)
    async with oc.aio.connect(loaded.address, direct=False, timeout=1) as session:
        await session.ops.image.scale(X, 1.0)
        with stopped(loaded), pytest.raises(oc.DeadlineExceededError):
            await session.with_options(timeout=MOMENT).ops.image.scale(large, 1.0)

"""A session in the child of a process that was forked: it is the parent's, and stays whole."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.service.running_daemon import RunningDaemon

BLOCKING = """\
import multiprocessing, sys
import numpy as np
import opdispatch_client as oc

address, lane = sys.argv[1:]
session = oc.connect(address, lane=lane)
x, large = np.arange(2.0), np.ones((300, 300))
for _ in range(3):
    session.ops.park.double(x), session.ops.park.double(large)
kept = session.put(x)

def ask(what, make):
    try:
        print("child", what, make())
    except oc.DaemonUnavailableError as error:
        print("child", what, "forked from" in str(error), "with connect()" in str(error))

def child():
    ask("call", lambda: session.ops.park.double(x))
    ask("large", lambda: session.ops.park.double(session.empty(large.shape, large.dtype)))
    ask("submit", lambda: session.submit("park::double", x).result(10))
    ask("map", lambda: list(session.map("park::double", [(x,)])))
    ask("put", lambda: session.put(x))
    ask("remote", lambda: kept.numpy())
    ask("list", lambda: session.libraries())
    session.close()
    with oc.connect(address) as own:
        print("child own", own.ops.park.double(x).tolist(), flush=True)

process = multiprocessing.get_context("fork").Process(target=child)
sys.stdout.flush()
process.start()
process.join()
print("parent", session.ops.park.double(x).tolist(), kept.numpy().tolist(), process.exitcode)
print("parent", float(session.ops.park.double(large).sum()))
"""
ASYNCIO = """\
import asyncio, multiprocessing, sys
import numpy as np
import opdispatch_client as oc

address, lane = sys.argv[1:]
x = np.arange(2.0)

async def ask(what, make):
    try:
        print("child", what, await make())
    except oc.DaemonUnavailableError as error:
        print("child", what, "forked from" in str(error), "spawn" in str(error))

async def in_child(session):
    await ask("call", lambda: session.call("park::double", x))
    await ask("put", lambda: session.put(x))
    await ask("list", lambda: session.libraries())
    await session.close()

def child(session):
    asyncio.run(in_child(session))
    sys.stdout.flush()

async def main():
    async with oc.aio.connect(address, lane=lane) as session:
        for _ in range(3):
            await session.ops.park.double(x)
        process = multiprocessing.get_context("fork").Process(target=child, args=(session,))
        sys.stdout.flush()
        process.start()
        await asyncio.to_thread(process.join)
        print("parent", (await session.ops.park.double(x)).tolist(), process.exitcode)

asyncio.run(main())
"""

OWN = """\
import asyncio, gc, multiprocessing, sys
import numpy as np
import opdispatch_client as oc

address, of_parent, of_child = sys.argv[1:]
x = np.arange(2.0)
gc.disable()

async def call():
    async with oc.aio.connect(address) as session:
        return (await session.ops.park.double(x)).tolist(), len(await session.libraries())

def open_one(kind):
    if kind == "asyncio":
        return asyncio.run(call())
    with oc.connect(address) as session:
        return session.ops.park.double(x).tolist(), len(session.libraries())

def child():
    gc.collect()
    try:
        print("child", *open_one(of_child), flush=True)
    except oc.DaemonUnavailableError as error:
        print("child", error.message.partition(", which ")[2], flush=True)

print("parent", *open_one(of_parent), flush=True)
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
print("parent", *open_one(of_parent), process.exitcode)
"""
NO_FORK_SUPPORT = {"GRPC_ENABLE_FORK_SUPPORT": "0"}


def run(text: str, *arguments: str, environment: dict[str, str] | None = None) -> list[str]:
    process = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", text, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={**os.environ, **(environment or {})},
    )
    return process.stdout.splitlines()


@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_child_gets_an_error_that_the_session_is_its_parents(daemon: RunningDaemon, lane: str):
    asked = ["call", "large", "submit", "map", "put", "remote", "list"]
    assert run(BLOCKING, daemon.address, lane) == [
        *(f"child {what} True True" for what in asked),
        "child own [0.0, 2.0]",
        "parent [0.0, 2.0] [0.0, 1.0] 0",
        "parent 180000.0",
    ]


@pytest.mark.parametrize("lane", ["local", "stream", "grpc"])
def test_asyncio_session_in_a_forked_child_is_refused_and_stays_whole(
    daemon: RunningDaemon, lane: str
):
    # gRPC's threads on the parent's stream, which it would start again, crash children at times.
    assert run(ASYNCIO, daemon.address, lane, environment=NO_FORK_SUPPORT) == [
        *(f"child {what} True True" for what in ("call", "put", "list")),
        "parent [0.0, 2.0] 0",
    ]


@pytest.mark.parametrize("of_child", ["blocking", "asyncio"])
@pytest.mark.parametrize(
    ("of_parent", "why"),
    [
        ("blocking", "used gRPC with GRPC_ENABLE_FORK_SUPPORT=0"),
        ("asyncio", "has had a session of asyncio"),
    ],
)
def test_a_child_in_which_grpc_does_not_work_has_no_session_of_its_own(
    daemon: RunningDaemon, of_parent: str, why: str, of_child: str
):
    assert run(OWN, daemon.address, of_parent, of_child, environment=NO_FORK_SUPPORT) == [
        "parent [0.0, 2.0] 1",
        f"child {why}",
        "parent [0.0, 2.0] 1 0",
    ]

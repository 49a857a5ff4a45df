"""``help``, ``inspect``, ``dir`` and mistyped names, with a blocking session and an asyncio one."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import pydoc
import signal
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from opdispatch import Tensor
from opdispatch_client.operator_catalog import ANSWER_SECONDS
from tests.service.running_daemon import RunningDaemon

X = np.arange(3.0)
LIBRARY = '''\
from opdispatch import Library

lib = Library("helped", "DEF")
lib.define("blur(Tensor picture, int[2] size=3, *, Tensor? mask=None, bool wrap=False) -> Tensor")
lib.define("add.Tensor(Tensor x, Tensor y) -> Tensor")
lib.define("add.Scalar(Tensor x, Scalar y) -> Tensor")


def blur(picture, size, *, mask, wrap):
    """Blur a picture.

    The window is square.
    """
    return picture


lib.impl("blur", blur, "CPU")
lib.impl("add.Tensor", lambda x, y: x + y, "CPU")
'''


@pytest.fixture(scope="module")
def helped(daemon: RunningDaemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    path = tmp_path_factory.mktemp("help") / "helped.py"
    path.write_text(LIBRARY)
    with daemon.connect() as session:
        session.load(path)
        yield
        session.unload("helped")


@pytest.fixture(params=["blocking", "asyncio"])
async def ops(
    request: pytest.FixtureRequest, daemon: RunningDaemon, helped: None
) -> AsyncIterator[Any]:
    if request.param == "blocking":
        with daemon.connect() as session:
            yield session.ops
    else:
        async with oc.aio.connect(daemon.address) as asyncio_session:
            for each in await asyncio_session.operators():
                if each.name.startswith("helped::"):
                    await asyncio_session.describe(each.name)
            yield asyncio_session.ops


async def test_help_shows_schema_and_documentation(ops: Any):
    shown = pydoc.plain(pydoc.render_doc(ops.helped.blur))
    for text in (
        "helped::blur(Tensor picture, int[2] size=3, *, Tensor? mask=None, bool wrap=False)",
        "Blur a picture.",
        "    The window is square.",
        "library helped",
        "helped.py:4",
        "kernels for CPU",
    ):
        assert text in shown
    assert "helped::add.Tensor(" in ops.helped.add.__doc__
    assert "helped::add.Scalar(" in ops.helped.add.__doc__
    assert "helped::add.Scalar(" not in ops.helped.add.Tensor.__doc__
    assert inspect.getdoc(ops.helped.blur).startswith("helped::blur(")


async def test_signature_is_the_schemas(ops: Any):
    assert type(ops.helped.blur).__annotations__ == {}  # asking leaves nothing behind
    signature = inspect.signature(ops.helped.blur)
    assert [*signature.parameters] == ["picture", "size", "mask", "wrap"]
    assert signature.parameters["mask"].kind is inspect.Parameter.KEYWORD_ONLY
    assert signature.parameters["wrap"].default is False
    assert signature.bind(X, [1, 1], wrap=True).arguments["wrap"] is True
    assert ops.helped.blur.__annotations__ == {
        "picture": Tensor,
        "size": list[int],
        "mask": Tensor | None,
        "wrap": bool,
        "return": Tensor,
    }
    assert inspect.signature(ops.helped.add.Tensor).return_annotation is Tensor
    assert [*inspect.signature(ops.helped.add).parameters] == ["args", "kwargs"]


async def test_operator_can_be_wrapped(ops: Any):
    wrapped = functools.wraps(ops.helped.blur)(lambda *args: None)
    assert (wrapped.__name__, wrapped.__qualname__) == ("blur", "helped::blur")
    assert "Blur a picture." in (wrapped.__doc__ or "")


async def test_dir_lists_what_there_is(ops: Any):
    assert "helped" in dir(ops)
    assert dir(ops.helped) == ["add", "blur"]
    assert dir(ops.helped.add) == ["Scalar", "Tensor"]


def test_names_are_not_looked_up_before_any_is_known(session: oc.Session):
    ops = session.ops
    assert repr(ops.nowhere.nothing) == "<RemoteOperator nowhere::nothing>"
    assert ops.nowhere.nothing.__doc__.startswith("``session.ops.namespace.name``")
    assert [*inspect.signature(ops.nowhere.nothing).parameters] == ["args", "kwargs"]


def test_mistyped_name_is_refused_with_similar_ones_once_names_are_known(
    session: oc.Session, helped: None
):
    ops = session.ops
    dir(ops)
    for look, complaint in (
        (lambda: ops.helped.blurr, r"no operator helped::blurr \(did you mean helped::blur\?\)"),
        (lambda: ops.helpet, r"there is no namespace helpet \(did you mean helped\?\)"),
        (lambda: ops.helped.add.Tensr, r"add.Tensr \(did you mean helped::add.Tensor\?\)"),
        (lambda: ops.helped.zzz, r"there is no operator helped::zzz$"),
    ):
        with pytest.raises(oc.OperatorNotFoundError, match=complaint):
            look()
    assert not hasattr(ops.helped, "nope")
    assert ops.helped.add.default is not None  # which is chosen by the daemon


@pytest.mark.parametrize("kind", ["blocking", "asyncio"])
async def test_name_that_was_loaded_meanwhile_is_found(
    kind: str, session: oc.Session, daemon: RunningDaemon, tmp_path: Path
):
    if kind == "blocking":
        ops: Any = session.ops
        dir(ops)
    else:
        asyncio_session = await oc.aio.connect(daemon.address)
        await asyncio_session.operators()
        ops = asyncio_session.ops
    path = tmp_path / "late.py"
    path.write_text('from opdispatch import Library\nLibrary("late", "DEF").define("f() -> int")\n')
    with daemon.connect() as other:
        other.load(path)
        assert repr(ops.late.f) == "<RemoteOperator late::f>"
        other.unload("late")
    if kind == "asyncio":
        await asyncio_session.close()


async def test_event_loop_never_waits_for_help(daemon: RunningDaemon, helped: None):
    async with oc.aio.connect(daemon.address) as session:
        await session.operators()
        ops = session.ops
        os.kill(daemon.process.pid, signal.SIGSTOP)  # it does not answer
        try:
            began = time.monotonic()
            for _ in range(10):
                assert repr(ops.helped.nope) == "<RemoteOperator helped::nope>"
                assert dir(ops.helped) == ["add", "blur"]
                assert "Blur a picture" not in ops.helped.blur.__doc__
                assert "helped" in dir(ops)
            assert time.monotonic() - began < 10 * ANSWER_SECONDS
        finally:
            os.kill(daemon.process.pid, signal.SIGCONT)
        async with asyncio.timeout(60):
            while "Blur a picture" not in ops.helped.blur.__doc__:  # it asks in the background
                await asyncio.sleep(0.01)
        with pytest.raises(oc.OperatorNotFoundError):
            await ops.helped.nope(X)


async def test_thread_without_an_event_loop_asks_and_waits(daemon: RunningDaemon, helped: None):
    async with oc.aio.connect(daemon.address) as session:
        assert dir(session.ops) == []
        assert "helped" in await asyncio.to_thread(dir, session.ops)
        text = await asyncio.to_thread(pydoc.render_doc, session.ops.helped.blur)
        assert "Blur a picture." in pydoc.plain(text)


async def test_session_that_closes_asks_no_more(daemon: RunningDaemon, helped: None):
    async with oc.aio.connect(daemon.address) as session:
        dir(session.ops)
    await asyncio.sleep(0)
    assert dir(session.ops) == []
    async with asyncio.timeout(60):
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)


def test_listing_makes_names_known(session: oc.Session, helped: None):
    session.operators()
    with pytest.raises(AttributeError, match="did you mean park::double"):
        session.ops.park.doubel  # noqa: B018
    assert session.ops.park.double(X)[1] == 2


def test_names_are_not_looked_up_of_a_session_that_is_closed(daemon: RunningDaemon):
    session = daemon.connect()
    dir(session.ops)
    session.close()
    with pytest.raises(oc.DaemonUnavailableError, match="is closed"):
        session.ops.park.nope(X)
    assert session.ops.park.double.__doc__ is not None

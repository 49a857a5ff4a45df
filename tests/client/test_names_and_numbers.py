"""Names and numbers that cannot be sent: of interpreters, devices, libraries and operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon

X = np.ones(2)


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda session, name: session.put(X, on=name), "on"),
        (lambda session, name: session.put(X, device=name), "device"),
        (lambda session, name: session.call(name, X), r"\$\.operator"),
        (lambda session, name: session.call(name, X, remote=True), r"\$\.operator"),
        (lambda session, name: session.submit(name, X).result(), r"\$\.operator"),
        (lambda session, name: session.load("park", on=name), "on"),
        (lambda session, name: session.load("park", name=name), "name"),
        (lambda session, name: session.unload(name), "name"),
        (lambda session, name: session.drain(name), "interpreter"),
        (lambda session, name: session.describe(name), "operator"),
    ],
)
@pytest.mark.parametrize("wrong", [3, 0, b"worker-1", ["worker-1"]])
def test_what_is_no_text_is_an_error_of_the_argument(
    session: oc.Session, ask: Callable[[oc.Session, Any], Any], name: str, wrong: Any
):
    with pytest.raises(oc.ArgumentError, match=rf"^{name} is .*; expected a str$"):
        ask(session, wrong)


def test_half_a_surrogate_pair_is_not_sent(session: oc.Session):
    x = session.put(X)
    for ask in (
        lambda: session.put(X, on="\ud800"),
        lambda: session.put(X, device="\ud800"),
        lambda: x.to("\ud800"),
    ):
        with pytest.raises(oc.WireError, match=r"^(on|device): .* half a surrogate pair at 0$"):
            ask()
    np.testing.assert_array_equal(x.numpy(), X)


async def test_an_asyncio_session_refuses_them_too(daemon: RunningDaemon):
    async with oc.aio.connect(daemon.address) as session:
        x = await session.put(X)
        with pytest.raises(oc.ArgumentError, match=r"^on is 3; expected a str$"):
            await session.put(X, on=3)  # type: ignore[arg-type]
        with pytest.raises(oc.WireError, match=r"^device: .* half a surrogate pair"):
            await session.put(X, device="\ud800")
        with pytest.raises(oc.WireError, match=r"^device: .* half a surrogate pair"):
            await x.to("\ud800")


@pytest.mark.parametrize(
    ("ask", "name"),
    [
        (lambda session, number: session.scale("park", number), "interpreters"),
        (lambda session, number: session.load("park", interpreters=number), "interpreters"),
        (lambda session, number: session.unload("park", version=number), "version"),
    ],
)
def test_numbers_that_cannot_be_sent_are_errors_of_the_argument(
    session: oc.Session, ask: Callable[[oc.Session, Any], Any], name: str
):
    for wrong in ("2", 2.0, [2], True, np.ones(2), np.array(2.0)):
        with pytest.raises(oc.ArgumentError, match=rf"^{name} is .*; expected an int$"):
            ask(session, wrong)
    for wrong in (-1, 2**32, 2**70):
        with pytest.raises(oc.WireError, match=rf"^{name} is {wrong}; expected 0 to 4294967295$"):
            ask(session, wrong)
    with pytest.raises(oc.WireError, match=r"^interpreters is 0; expected 1 or more$"):
        session.scale("park", 0)


@pytest.mark.parametrize(
    "wait",
    [
        lambda session, seconds: session.wait_for_def("park::slow", seconds),
        lambda session, seconds: session.wait_for_impl("park::slow", "CPU", seconds),
    ],
)
def test_a_time_that_is_no_number_is_an_error_of_the_argument(
    session: oc.Session, wait: Callable[[oc.Session, Any], Any]
):
    for wrong in ("2", 2j, [2], np.ones(2)):
        with pytest.raises(oc.ArgumentError, match=r"^timeout is .*; expected a float, or None$"):
            wait(session, wrong)
    with pytest.raises(oc.WireError, match=r"^timeout is 10*\.\.\.0*, which is more"):
        wait(session, 10**400)

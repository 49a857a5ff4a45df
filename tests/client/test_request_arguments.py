"""Arguments of sessions that are of a wrong type, and names and numbers that cannot be sent."""

from __future__ import annotations

import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.running_daemon import RunningDaemon
from tests.waits import LONGEST_WAIT

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
def test_non_string_argument_raises_argument_error(
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
        with pytest.raises(
            oc.WireError,
            match=r"^(on|device): .* a lone surrogate at index 0; expected valid Unicode$",
        ):
            ask()
    np.testing.assert_array_equal(x.numpy(), X)


async def test_an_asyncio_session_refuses_them_too(daemon: RunningDaemon):
    async with oc.aio.connect(daemon.address) as session:
        x = await session.put(X)
        with pytest.raises(oc.ArgumentError, match=r"^on is 3; expected a str$"):
            await session.put(X, on=3)  # type: ignore[arg-type]
        with pytest.raises(oc.WireError, match=r"^device: .* a lone surrogate"):
            await session.put(X, device="\ud800")
        with pytest.raises(oc.WireError, match=r"^device: .* a lone surrogate"):
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


# What methods need beside the one argument that is of a wrong type.
OTHERS: dict[str, dict[str, Any]] = {
    "call": {"operator": "park::double"},
    "drain": {"interpreter": "worker-1"},
    "grad": {"outputs": [X], "inputs": [X]},
    "load": {"path_or_module": "park"},
    "map": {"operator": "park::double", "list_of_args": [(X,)]},
    "put": {"array": X},
    "empty": {"shape": 2},
    "scale": {"name": "park", "interpreters": 1},
    "submit": {"operator": "park::double"},
    "unload": {"name": "park"},
    "unload_and_measure": {"name": "park"},
    "wait_for_def": {"operator": "park::double"},
    "wait_for_impl": {"operator": "park::double"},
}


class Wrong:
    """Of no type that any argument should have."""

    def __repr__(self) -> str:
        return "<wrong>"


WRONG = Wrong()


def arguments(session_class: type) -> list[tuple[str, str]]:
    """Every argument of every public method that is not of any type, by their names."""
    return [
        (method, name)
        for method, function in inspect.getmembers(session_class, inspect.isfunction)
        if not method.startswith("_") and method != "profile"  # which is opdispatch.profile
        for name, each in inspect.signature(function).parameters.items()
        if name != "self" and each.annotation != "Any"
    ]


def ask(session: Any, method: str, name: str, wrong: object) -> Any:
    """Call the method, with all that it needs, and something wrong for one of its arguments."""
    options = {**OTHERS.get(method, {}), name: wrong}
    if "operator" in options and method in ("call", "submit", "trace"):
        return getattr(session, method)(options.pop("operator"), X, **options)
    return getattr(session, method)(**options)


def outcome(began: Any) -> Any:
    """Return the result of a call that has begun."""
    if isinstance(began, Future):
        return began.result(LONGEST_WAIT)
    return next(began) if isinstance(began, Iterator) else began


async def awaited_outcome(began: Any) -> Any:
    """``outcome``, with asyncio."""
    return await (anext(began) if isinstance(began, AsyncIterator) else began)


@pytest.mark.parametrize(("method", "name"), arguments(oc.Session))
def test_an_argument_of_a_wrong_type_is_an_error_that_names_it(
    session: oc.Session, method: str, name: str
):
    with pytest.raises((oc.ArgumentError, oc.WireError), match=rf"\b{name}\b.*(<wrong>|Wrong)"):
        outcome(ask(session, method, name, WRONG))


@pytest.mark.parametrize(("method", "name"), arguments(oc.aio.AsyncSession))
async def test_wrong_argument_of_an_asyncio_session_is_named(
    daemon: RunningDaemon, method: str, name: str
):
    errors = (oc.ArgumentError, oc.WireError)
    async with oc.aio.connect(daemon.address) as session:
        with pytest.raises(errors, match=rf"\b{name}\b.*(<wrong>|Wrong)"):
            await awaited_outcome(ask(session, method, name, WRONG))


@pytest.mark.parametrize("name", inspect.signature(oc.connect).parameters.keys())
def test_wrong_argument_of_connect_is_named(name: str):
    for connect in (oc.connect, oc.aio.connect):
        with pytest.raises(oc.ArgumentError, match=rf"^{name} is <wrong>"):
            connect(**{name: WRONG})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ask", "complaint"),
    [
        (lambda session, wrong: session.drain("worker-1", undo=wrong), "undo is"),
        (lambda session, wrong: session.libraries(all_versions=wrong), "all_versions is"),
        (lambda session, wrong: session.load("park", isolated=wrong), "isolated is"),
        (lambda session, wrong: session.call("park::double", X, remote=wrong), "remote is"),
        (lambda session, wrong: session.submit("park::double", X, remote=wrong), "remote is"),
        (lambda session, wrong: session.with_options(retry=wrong), "retry is"),
        (lambda session, wrong: session.as_program(lambda x: x, remote=wrong)(X), "remote is"),
    ],
)
@pytest.mark.parametrize("wrong", ["no", 3, 0.0, [], X])
def test_non_bool_argument_raises_argument_error(
    session: oc.Session, ask: Callable[[oc.Session, Any], Any], complaint: str, wrong: Any
):
    with pytest.raises(oc.ArgumentError, match=rf"^{complaint} .*; expected a bool$"):
        ask(session, wrong)


def test_none_is_no_name_or_number_where_one_is_needed(session: oc.Session):
    with pytest.raises(oc.ArgumentError, match=r"^name is None; expected a str$"):
        session.unload(None)  # type: ignore[arg-type]
    with pytest.raises(oc.ArgumentError, match=r"^interpreters is None; expected an int$"):
        session.scale("park", None)  # type: ignore[arg-type]


def test_paths_and_requirements_may_be_what_pathlib_and_lists_are(
    session: oc.Session, tmp_path: Path
):
    with pytest.raises(
        oc.ArgumentError, match=r"^path_or_module is b'park.py'; expected a str, or"
    ):
        session.load(b"park.py")  # type: ignore[arg-type]
    for wrong in (3, b"numpy", [3], ["numpy", b"scipy"]):
        with pytest.raises(oc.ArgumentError, match=r"^requirements is .*; expected the path of a"):
            session.load("park", requirements=wrong)  # type: ignore[arg-type]
    for missing in (tmp_path / "none.txt", "no\0path"):
        with pytest.raises(oc.LibraryLoadError, match="cannot read the requirements file"):
            session.load("park", requirements=missing)


def test_map_refuses_items_that_are_not_argument_tuples(session: oc.Session):
    with pytest.raises(oc.ArgumentError, match=r"^list_of_args is 3; expected a tuple of arg"):
        session.map("park::double", 3)  # type: ignore[arg-type]
    with pytest.raises(oc.ArgumentError, match=r"^list_of_args\[1\] is 3; expected the arguments"):
        list(session.map("park::double", [(X,), 3]))  # type: ignore[list-item]


async def test_asyncio_map_refuses_items_that_are_not_argument_tuples(daemon: RunningDaemon):
    async with oc.aio.connect(daemon.address) as session:
        with pytest.raises(
            oc.ArgumentError, match=r"^list_of_args\[1\] is 3; expected the arguments"
        ):
            async for _ in session.map("park::double", [(X,), 3], in_flight=2**70):  # type: ignore[list-item]
                pass


def test_memory_is_asked_for_by_a_shape_and_a_dtype(session: oc.Session):
    for wrong in ("no", None, 1.5, [1.5], X):
        with pytest.raises(oc.ArgumentError, match=r"^shape is .*; expected an int, or a tuple"):
            session.empty(wrong)
    for wrong in ("no", 3, "\ud800", [3]):
        with pytest.raises(oc.ArgumentError, match=r"^dtype is .*; expected a dtype: "):
            session.empty(2, wrong)
    with pytest.raises(oc.WireError, match=r"^shape is 1180591620717411303424, which exceeds"):
        session.empty(2**70)

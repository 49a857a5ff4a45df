"""Loads are permitted by what a library registers, and so are changes of those that are there."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import opdispatch_client as oc
from tests.service.conftest import WriteLibrary
from tests.service.running_daemon import RunningDaemon
from tests.service.tokens import Tokens

Connect = Callable[..., oc.Session]

OWN = """
from opdispatch import Library
lib = Library("image", "DEF")
lib.define("one() -> int")
lib.impl("one", lambda: {value}, "CompositeExplicitAutograd")
"""


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningDaemon, Tokens]]:
    folder = tmp_path_factory.mktemp("permits")
    tokens = Tokens(folder)
    listen = ["127.0.0.1:0", f"unix://{folder}/daemon.sock"]
    audit = str(folder / "audit.log")
    options = ("--tokens", str(tokens.path), "--audit-log", audit)
    alice = tokens.add("load", ["image::*", "audio::mix"], name="alice")
    bob = tokens.add("load", ["bank::*"], name="bob")
    carol = tokens.add("admin", name="carol")
    (folder / "secrets.json").write_text(json.dumps({"alice": alice, "bob": bob, "carol": carol}))
    daemon = RunningDaemon(folder, *options, workers=1, listen=listen)
    try:
        daemon.wait_until_ready()
        yield daemon, tokens
    finally:
        daemon.clean_up()


@pytest.fixture
def connect(guarded: tuple[RunningDaemon, Tokens]) -> Iterator[Connect]:
    """Open a session of alice, bob or carol; nothing stays loaded."""
    daemon, _ = guarded
    secrets = json.loads((daemon.folder / "secrets.json").read_text())
    yield lambda name: oc.connect(daemon.address, token=secrets[name])
    with oc.connect(daemon.addresses[1]) as session:
        for library in session.libraries():
            session.unload(library.name)
        assert session.check_invariants() == []


def audit_log(daemon: RunningDaemon) -> list[tuple[str, str, str, str]]:
    lines = (daemon.folder / "audit.log").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    found = [each for each in records if "token " in each["identity"]]
    return [
        (
            each["action"],
            each["library"],
            whose(each["identity"]),
            each["outcome"],
        )
        for each in found
    ]


OUTSIDE = {
    "claims another namespace": (
        'from opdispatch import Library\nlib = Library("bank", "DEF")\nlib.define("f() -> int")',
        "claims the namespace bank",
    ),
    "defines beside its own": (
        'from opdispatch import Library\nLibrary("image", "DEF").define("f() -> int")\n'
        'Library("bank", "FRAGMENT").define("f() -> int")',
        "registers bank::f",
    ),
    "claims more than one operator": (
        'from opdispatch import Library\nlib = Library("audio", "DEF")\nlib.define("mix() -> int")',
        "claims the namespace audio",
    ),
    "implements another's operator": (
        'from opdispatch import Library\nlib = Library("bank", "IMPL")\n'
        'lib.impl("quote", lambda: 1, "CompositeExplicitAutograd")',
        "registers bank::quote",
    ),
    "a fallback": (
        'from opdispatch import Library\nlib = Library("_", "IMPL")\n'
        'lib.fallback(lambda op, *args: None, "PrivateUse3")',
        "a fallback, which library 'tried' has, needs admin",
    ),
}


@pytest.mark.parametrize("case", OUTSIDE)
def test_a_library_that_registers_outside_its_globs_leaves_nothing(
    guarded: tuple[RunningDaemon, Tokens], connect: Connect, write_library: WriteLibrary, case: str
):
    text, message = OUTSIDE[case]
    with connect("alice") as session:
        with pytest.raises(oc.PermissionDeniedError) as caught:
            session.load(write_library("tried", text))
        assert message in str(caught.value)
        assert "opdispatch token create --role" in caught.value.hint
        assert session.libraries() == []
        assert session.operators() == []
    assert audit_log(guarded[0])[-1] == ("load", "tried", "alice", "permission_denied")
    with connect("carol") as session:
        session.load(write_library("tried", text))


def whose(identity: str) -> str:
    """Return the name in ``token ID (NAME) from ADDRESS``."""
    return identity.partition("(")[2].partition(")")[0]


def test_a_schema_cannot_name_another_namespace(connect: Connect, write_library: WriteLibrary):
    text = (
        'from opdispatch import Library\nlib = Library("image", "FRAGMENT")\n'
        'lib.define("bank::f() -> int")'
    )
    with connect("alice") as session:
        with pytest.raises(oc.RegistrationError, match="cannot define bank::f, of another namesp"):
            session.load(write_library("tried", text))
        assert session.operators() == []


def test_a_library_within_its_globs_is_loaded_replaced_and_unloaded(
    guarded: tuple[RunningDaemon, Tokens], connect: Connect, write_library: WriteLibrary
):
    with connect("alice") as session:
        for value in (1, 2):
            session.load(write_library("own", OWN.format(value=value)))
            assert session.ops.image.one() == value
        session.scale("own", 1)
        session.rollback("own")
        assert session.ops.image.one() == 1
        session.unload("own")
        fragment = (
            'from opdispatch import Library\nLibrary("audio", "FRAGMENT").define("mix() -> int")'
        )
        session.load(write_library("mixer", fragment))
    assert audit_log(guarded[0])[-6:] == [
        ("load", "own", "alice", "done"),
        ("load", "own", "alice", "done"),
        ("scale", "own", "alice", "done"),
        ("roll back", "own", "alice", "done"),
        ("unload", "own", "alice", "done"),
        ("load", "mixer", "alice", "done"),
    ]


def test_a_library_of_another_is_neither_replaced_nor_scaled_nor_unloaded(
    connect: Connect, write_library: WriteLibrary
):
    path = write_library("own", OWN.format(value=1))
    bank = 'from opdispatch import Library\nLibrary("bank", "DEF").define("f() -> int")'
    with connect("alice") as alice, connect("bob") as bob:
        alice.load(path)
        before = alice.load(write_library("own", OWN.format(value=2)))
        attempts = {
            "load": lambda: bob.load(write_library("bank", bank), name="own"),
            "load again": lambda: bob.load(write_library("own", OWN.format(value=2))),
            "scale": lambda: bob.scale("own", 1),
            "rollback": lambda: bob.rollback("own"),
            "unload": lambda: bob.unload("own"),
            "unload one": lambda: bob.unload("own", version=1),
        }
        for attempt in attempts.values():
            with pytest.raises(oc.PermissionDeniedError, match="may register bank::"):
                attempt()
        assert alice.ops.image.one() == 2
        (library,) = alice.libraries()
        assert (library.version, library.active) == (before.version, True)
        with pytest.raises(oc.PermissionDeniedError, match="DrainInterpreter needs admin"):
            bob.drain("worker-1")


def test_the_audit_log_is_for_the_daemons_user_alone(guarded: tuple[RunningDaemon, Tokens]):
    path = guarded[0].folder / "audit.log"
    assert path.stat().st_mode & 0o777 == 0o600
    secrets = json.loads((guarded[0].folder / "secrets.json").read_text())
    for text in (path.read_text(), guarded[0].log()):
        assert not any(secret.split("_", 2)[2] in text for secret in secrets.values())


def test_an_audit_log_that_is_a_link_ends_the_start(tmp_path: Path):
    (tmp_path / "audit.log").symlink_to(tmp_path / "precious")
    daemon = RunningDaemon(tmp_path, "--audit-log", str(tmp_path / "audit.log"), workers=0)
    try:
        assert daemon.wait() == 1
        assert "audit.log" in daemon.log()
        assert not (tmp_path / "precious").exists()
    finally:
        daemon.clean_up()

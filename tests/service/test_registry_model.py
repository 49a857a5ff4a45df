"""The registry of a real daemon beside the model of it, in sequences that hypothesis makes up.

``HYPOTHESIS_PROFILE=thorough`` runs many more of them.
"""

from __future__ import annotations

import os
import signal
import tempfile
from pathlib import Path

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

import opdispatch_client as oc
from tests.library_model import LibraryState
from tests.service.recording_client import RecordingClient
from tests.service.running_daemon import RunningDaemon, wait_for

THOROUGH = os.environ.get("HYPOTHESIS_PROFILE") == "thorough"
INTERPRETERS = 2
# A third one would have to wait for long before it is started again.
KILLS = 2

names = st.sampled_from(["red", "green"])
stamps = st.integers(1, 3)


class RegistryMachine(RuleBasedStateMachine):
    """A daemon of its own for each sequence, and the model's state of each name."""

    @initialize()
    def start(self) -> None:
        self.folder = tempfile.TemporaryDirectory()
        self.daemon = RunningDaemon(Path(self.folder.name), workers=INTERPRETERS)
        self.daemon.expects_errors = True
        self.daemon.wait_until_ready()
        self.session = self.daemon.connect()
        self.client = RecordingClient(self.session, Path(self.folder.name) / "libraries")
        self.states = dict.fromkeys(["red", "green"], LibraryState())
        self.kills = 0

    def teardown(self) -> None:
        if hasattr(self, "session"):
            for name, state in self.states.items():
                if state.versions:
                    self.session.unload(name)
            assert self.session.operators() == []
            assert self.session.check_invariants() == []
            self.session.close()
            self.daemon.clean_up()
            self.folder.cleanup()

    @rule(name=names, stamp=stamps)
    def load(self, name: str, stamp: int) -> None:
        self.states[name], expected = self.states[name].after_load(stamp)
        assert self.client.load(name, stamp) == expected

    @rule(name=names)
    def unload(self, name: str) -> None:
        self.states[name], expected = self.states[name].after_unload(0)
        assert self.client.unload(name) == expected

    @rule(name=names, number=st.integers(1, 6))
    def unload_version(self, name: str, number: int) -> None:
        self.states[name], expected = self.states[name].after_unload(number)
        assert self.client.unload(name, number) == expected

    @rule(name=names)
    def unload_the_active_version(self, name: str) -> None:
        active = self.states[name].active
        if active is not None:
            self.unload_version(name, active.number)

    @rule(name=names)
    def roll_back(self, name: str) -> None:
        self.states[name], expected = self.states[name].after_rollback()
        assert self.client.rollback(name) == expected

    @rule(name=names, interpreters=st.integers(1, INTERPRETERS))
    def scale(self, name: str, interpreters: int) -> None:
        assert self.client.scale(name, interpreters) == self.states[name].scale()
        for library in self.session.libraries():
            if library.name == name:
                assert library.interpreters_wanted == interpreters
                assert len(library.interpreters) == interpreters

    @rule(name=names)
    def wait_for_it(self, name: str) -> None:
        defined = self.states[name].active is not None
        try:
            self.session.wait_for_def(f"{name}::get", 0)
            assert defined
        except oc.WaitTimeoutError:
            assert not defined

    @precondition(lambda self: self.kills < KILLS)
    @rule(which=st.integers(0, INTERPRETERS - 1))
    def kill_an_interpreter(self, which: int) -> None:
        """Nothing is lost: what it had is served again, as the same versions."""
        self.kills += 1
        victim = self.session.interpreters()[which].pid
        os.kill(victim, signal.SIGKILL)

        def recovered() -> bool:
            pids = {interpreter.pid for interpreter in self.session.interpreters()}
            libraries = self.session.libraries()
            return (
                victim not in pids
                and len(pids) == INTERPRETERS
                and all(library.active for library in libraries)
            )

        assert wait_for(recovered)

    @invariant()
    def it_answers_as_the_model(self) -> None:
        if not hasattr(self, "session"):
            return
        for name, state in self.states.items():
            assert self.client.list(name) == state.listed()
            assert self.client.call(name) == state.call()
        defined = {f"{name}::get" for name, state in self.states.items() if state.versions}
        assert {operator.name for operator in self.session.operators()} == defined

    @invariant()
    def its_own_checks_hold(self) -> None:
        if hasattr(self, "session"):
            assert self.session.check_invariants() == []


def test_the_registry_does_as_its_model() -> None:
    run_state_machine_as_test(  # type: ignore[no-untyped-call]
        RegistryMachine,
        settings=settings(
            max_examples=150 if THOROUGH else 3,
            stateful_step_count=40 if THOROUGH else 20,
            deadline=None,
            # A failure is reported with the sequence as it was: to make it shorter takes minutes.
            phases=[Phase.explicit, Phase.reuse, Phase.generate],
            suppress_health_check=list(HealthCheck),
            derandomize=not THOROUGH,
            database=None,
        ),
    )

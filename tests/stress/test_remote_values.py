"""Remote values under kills: every answer is right or an error that may be, and nothing is left."""

from __future__ import annotations

import gc
import os
import random
import signal
import threading
import time
from contextlib import suppress

import numpy as np
import pytest

import opdispatch_client as oc
from tests.service.remote import MATH, MORE, kept, stores
from tests.service.running_daemon import RunningDaemon, wait_for

pytestmark = pytest.mark.slow

SECONDS = float(os.environ.get("OPDISPATCH_STRESS_SECONDS", "2"))
THREADS = 6
ONES = np.ones(2)
# What a caller may be told of a kill. Everything else is a mistake of ours.
ALLOWED = (oc.RemoteValueGoneError, oc.InterpreterDiedError)


class Client:
    """One thread with values of its own, of each of which it knows what it must be."""

    def __init__(self, session: oc.Session, seed: int, until: float) -> None:
        self._session = session
        self._random = random.Random(seed)
        self._until = until
        self._values: list[tuple[oc.RemoteTensor, np.ndarray]] = []
        self.answers = 0
        self.failures = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            while time.monotonic() < self._until:
                self._step()
        except BaseException as error:
            self.error = error
        self._values.clear()

    def _step(self) -> None:
        if len(self._values) < 2:
            self._put()
            return
        (x, known_x), (y, known_y) = self._random.choices(self._values, k=2)
        what = self._random.choice(["add", "mul", "fetch", "program", "write", "drop", "put"])
        try:
            if what == "put":
                self._put()
            elif what == "drop":
                self._values.pop(self._random.randrange(len(self._values)))
            elif what == "fetch":
                self._check(x.numpy(), known_x)
            elif what == "write":
                self._write(x, y, known_x, known_y)
            elif what == "program":
                with self._session.program() as p:
                    total = p.ops.math.add(x, y)
                    p.output(p.ops.more.mul(total, x))
                    p.output(total, remote=True)
                product, total = p.result
                self._check(product, (known_x + known_y) * known_x)
                self._keep(total, known_x + known_y)
            else:
                operator = "math::add" if what == "add" else "more::mul"
                result = self._session.call(operator, x, y, remote=self._random.random() < 0.7)
                known = known_x + known_y if what == "add" else known_x * known_y
                if isinstance(result, oc.RemoteTensor):
                    self._keep(result, known)
                else:
                    self._check(result, known)
        except ALLOWED:
            self.failures += 1
            self._forget_what_is_gone()

    def _write(
        self, x: oc.RemoteTensor, y: oc.RemoteTensor, known_x: np.ndarray, known_y: np.ndarray
    ) -> None:
        try:
            self._session.ops.math.iadd_(x, y)
        except ALLOWED:
            # Whether it was written to is not known, should it have outlived the call.
            self._values = [pair for pair in self._values if pair[0] is not x]
            raise
        known_x += known_x if x is y else known_y
        self.answers += 1

    def _put(self) -> None:
        known = np.array([self._random.randrange(1000) for _ in range(4)], np.uint64)
        on = self._random.choice([None, "worker-1", "worker-2"])
        with suppress(oc.InterpreterNotFoundError, *ALLOWED):
            self._keep(self._session.put(known, on=on), known.copy())

    def _keep(self, tensor: oc.RemoteTensor, known: np.ndarray) -> None:
        self._values.append((tensor, known))
        self.answers += 1
        if len(self._values) > 20:
            self._values.pop(0)

    def _check(self, found: np.ndarray, known: np.ndarray) -> None:
        self.answers += 1
        np.testing.assert_array_equal(found, known)

    def _forget_what_is_gone(self) -> None:
        left = []
        for tensor, known in self._values:
            with suppress(*ALLOWED):
                self._check(tensor.numpy(), known)
                left.append((tensor, known))
        self._values = left


@pytest.mark.parametrize("seed", [1])
def test_values_are_right_or_gone_while_interpreters_are_killed(tmp_path, seed: int):
    # Interpreters are killed on purpose here: that must not put them out of use.
    daemon = RunningDaemon(tmp_path, "--quarantine", "0")
    daemon.expects_errors = True
    try:
        daemon.wait_until_ready()
        with daemon.connect() as session, daemon.connect() as watch:
            for name, text in (("calc", MATH), ("more", MORE)):
                path = tmp_path / f"{name}.py"
                path.write_text(text)
                session.load(path, interpreters=1 if name == "more" else 2)
            until = time.monotonic() + SECONDS
            clients = [Client(session, seed * 100 + n, until) for n in range(THREADS)]
            threads = [threading.Thread(target=client.run) for client in clients]
            for thread in threads:
                thread.start()
            kill_some(watch, random.Random(seed), until)
            for thread in threads:
                thread.join(60)
                assert not thread.is_alive(), "a call never came back"
            for client in clients:
                if client.error is not None:
                    raise client.error
            assert all(client.answers > 20 for client in clients)
            gc.collect()
            assert wait_for(lambda: not kept(watch)), kept(watch)
            assert watch.check_invariants() == []
            # Kernels that ran when interpreters were killed are suspects, and their libraries may
            # be apart from others, in one interpreter alone; they are served all the same.
            assert (watch.ops.math.add(ONES, ONES) == 2).all()
            assert (watch.ops.more.mul(ONES, ONES) == 1).all()
            assert wait_for(lambda: len(watch.interpreters()) == 2)
            assert all(stores(watch, f"worker-{n}", 0) for n in (1, 2))
            assert all(not each.calls_in_flight for each in watch.interpreters())
    finally:
        daemon.clean_up()


def kill_some(session: oc.Session, randomness: random.Random, until: float) -> None:
    """Kill an interpreter now and then, as long as another one is there."""
    pause = threading.Event()
    while time.monotonic() < until:
        pause.wait(0.5)
        ready = [each for each in session.interpreters() if each.state == "ready"]
        if len(ready) == 2:
            with suppress(ProcessLookupError):
                os.kill(randomness.choice(ready).pid, signal.SIGKILL)

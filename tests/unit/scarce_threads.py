"""A system that has no thread to give, as at the limit of a container, until a test says so."""

from __future__ import annotations

import threading

import pytest


class ScarceThreads:
    """Threads whose name begins with ``name`` cannot be started while ``are_lacking``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.are_lacking = True
        self.tries = 0
        self._name = name
        self._start = threading.Thread.start
        monkeypatch.setattr(threading.Thread, "start", lambda thread: self._start_or_fail(thread))

    def _start_or_fail(self, thread: threading.Thread) -> None:
        if thread.name.startswith(self._name):
            self.tries += 1
            if self.are_lacking:
                raise RuntimeError("can't start new thread")
        self._start(thread)

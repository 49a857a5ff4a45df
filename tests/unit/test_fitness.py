"""Whether a process can still run kernels."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from opdispatch.errors import InternalError
from opdispatch_server.blame.fitness import INTERNAL_ERRORS, Fitness, find_problem
from opdispatch_wire.errors import KernelError


def test_sound_process_has_no_problem():
    assert find_problem() == ""


@pytest.mark.parametrize(
    "function", ["numpy.empty", "numpy.frombuffer", "os.open", "builtins.len", "threading.Thread"]
)
def test_function_that_was_taken_away_is_a_problem(monkeypatch: pytest.MonkeyPatch, function: str):
    with monkeypatch.context() as patch:
        patch.setattr(function, None)
        problem = find_problem()
    assert problem == f"something has taken {function} away"
    assert find_problem() == ""


def test_function_that_fails_is_a_problem(monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patch:
        patch.setattr(np, "empty", lambda *args, **kwargs: 1 / 0)
        problem = find_problem()
    assert problem == "values cannot be packed any more (ZeroDivisionError: division by zero)"


def test_function_that_another_one_stands_for_is_no_problem(monkeypatch: pytest.MonkeyPatch):
    original = np.empty
    monkeypatch.setattr(np, "empty", lambda *args, **kwargs: original(*args, **kwargs))
    assert find_problem() == ""


def test_process_without_descriptors_has_a_problem():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        problem = find_problem()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert problem == "it cannot open a file: Too many open files"


def test_repeated_internal_errors_are_reported_once_as_a_problem():
    told: list[str] = []
    fitness = Fitness(lambda: told.append("unfit"))
    for _ in range(20):
        assert fitness.check_after(KernelError("a kernel raised")) == ""
    for _ in range(INTERNAL_ERRORS - 1):
        assert fitness.check_after(InternalError("our mistake")) == ""
    assert "do not come from kernels" in fitness.check_after(TypeError("None is not callable"))
    assert "None is not callable" in fitness.check()
    assert told == ["unfit"]
    error = fitness.refusal("lib::f")
    assert error.facts["unfit"] == fitness.problem


def test_a_refusal_names_the_problem_and_the_operator_that_has_just_run(
    monkeypatch: pytest.MonkeyPatch,
):
    fitness = Fitness(lambda: None)
    with monkeypatch.context() as patched:
        patched.setattr(np, "frombuffer", None)
        assert fitness.check("lib::poison")
    assert fitness.check("lib::other"), "it stays unfit"
    facts = fitness.refusal("lib::f").facts
    assert facts["unfit"] == "something has taken numpy.frombuffer away"
    assert facts["unfit_after"] == "lib::poison"

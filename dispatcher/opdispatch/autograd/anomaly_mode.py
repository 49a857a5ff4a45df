"""Anomaly detection: find the forward call whose backward pass failed.

Mirrors ``torch/autograd/anomaly_mode.py`` and ``torch/csrc/autograd/python_anomaly_mode.cpp``.
"""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from opdispatch import arrays
from opdispatch.arrays.level_array import LevelArray
from opdispatch.autograd.node import Node
from opdispatch.autograd.recording_state import (
    RECORDING_STATE,
    RecordingState,
    change_recording_state,
)
from opdispatch.autograd.variable import DIFFERENTIABLE_KINDS
from opdispatch.errors import AutogradError
from opdispatch.local_state.grad_mode import no_grad
from opdispatch.local_state.lazy_imports import array_namespace


class set_detect_anomaly:  # noqa: N801 - PyTorch's name
    """Switch anomaly detection on or off, as a function or as a context manager.

    With ``mode``, each node records the traceback of its forward call, which is added as a note to
    errors of the backward pass. With ``check_nan``, a gradient that contains NaN raises an
    AutogradError that names the node. Applies to the current thread or task. Equivalent to
    ``torch.autograd.set_detect_anomaly``.
    """

    def __init__(self, mode: bool, check_nan: bool = True) -> None:
        self._before = _switch(mode, check_nan)

    def __enter__(self) -> None:
        """Enter the block; the previous state is restored on exit."""

    def __exit__(self, *exc: object) -> None:
        _switch(self._before.detects_anomalies, self._before.checks_nan)


class detect_anomaly:  # noqa: N801 - PyTorch's name
    """Context manager that enables anomaly detection; see ``set_detect_anomaly``."""

    def __init__(self, check_nan: bool = True) -> None:
        self._check_nan = check_nan
        self._before: list[RecordingState] = []

    def __enter__(self) -> None:
        self._before.append(_switch(True, self._check_nan))

    def __exit__(self, *exc: object) -> None:
        before = self._before.pop()
        _switch(before.detects_anomalies, before.checks_nan)


def is_anomaly_enabled() -> bool:
    """Return whether the current task detects anomalies."""
    return RECORDING_STATE.get().detects_anomalies


def is_anomaly_check_nan_enabled() -> bool:
    """Return whether anomaly detection also checks gradients for NaN."""
    return RECORDING_STATE.get().checks_nan


def _switch(mode: bool, check_nan: bool) -> RecordingState:
    return change_recording_state(detects_anomalies=bool(mode), checks_nan=bool(check_nan))


class AnomalyDetector:
    """Detector of one backward pass, in the task that runs it."""

    def __init__(self) -> None:
        self._before = RECORDING_STATE.get()

    def begin(self, node: Node) -> None:
        """Record ``node`` as the current one, the parent of nodes created from now on."""
        RECORDING_STATE.set(replace(self._before, evaluating=node))

    def check(self, node: Node, gradients: Sequence[Any]) -> None:
        """Raise AutogradError if a gradient returned by a node contains NaN."""
        if not self._before.checks_nan:
            return
        for place, gradient in enumerate(gradients):
            if gradient is not None and _has_nan(gradient):
                raise AutogradError(f"{node.name} returned NaN in its gradient of argument {place}")

    def explain(self, error: BaseException, node: Node) -> None:
        """Add a note to a node's error with the traceback of its forward call."""
        made_at = node.made_at
        if made_at is None:
            error.add_note(
                f"raised by {node.name}, made while anomalies were not detected: detect them in "
                "the calls that go forward, too"
            )
            return
        error.add_note(
            f"raised by {node.name}, made by this call (most recent call last):\n"
            f"{_text(made_at.stack)}"
        )
        while (induced_by := made_at.evaluating) is not None and induced_by.made_at is not None:
            made_at = induced_by.made_at
            error.add_note(
                f"in the backward pass of {induced_by.name}, made by this call (most recent call "
                f"last):\n{_text(made_at.stack)}"
            )

    def end(self) -> None:
        """End the backward pass."""
        RECORDING_STATE.set(self._before)


def _text(stack: Sequence[traceback.FrameSummary]) -> str:
    return "".join(traceback.format_list(list(stack))).rstrip()


def _has_nan(gradient: Any) -> bool:
    array = gradient.array
    if isinstance(array, LevelArray | arrays.FakeArray | arrays.MetaArray):
        return False  # their elements cannot be read
    if array.dtype.kind not in DIFFERENTIABLE_KINDS:
        return False
    xp = array_namespace()
    with no_grad():
        return bool(xp.any(xp.isnan(gradient.detach())).array)

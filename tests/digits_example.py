"""The example that trains a network, for tests: its library ``digits`` and what trains it."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "digits"
sys.path.insert(0, str(FOLDER))

import digits  # noqa: E402
import train  # noqa: E402

LIBRARY = FOLDER / "digits.py"


def make_task(steps: int, size: int, dtype: str = "float64") -> tuple[list[np.ndarray], list]:
    """Parameters to begin with, and batches of that size."""
    learned, _ = train.load_data(np.dtype(dtype))
    arrays = list(digits.make_parameters(np.dtype(dtype)).values())
    return arrays, train.choose_batches(learned, steps, size)


__all__ = ["FOLDER", "LIBRARY", "digits", "make_task", "train"]

"""The example of a language model, for tests: its library ``lm`` and its transformer."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / "examples" / "language_model"
sys.path.insert(0, str(FOLDER))

import lm  # noqa: E402
import transformer  # noqa: E402

LIBRARY = FOLDER / "lm"

__all__ = ["FOLDER", "LIBRARY", "lm", "transformer"]

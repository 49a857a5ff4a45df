"""Golden data: facts about PyTorch, each file with where they come from.

A file is gzipped JSON whose first member, ``provenance``, says which script took it from which
release of torch, when, and with which seed. Nobody edits one by hand: run its script again.
"""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden")
PROVENANCE = {"torch", "script", "date", "seed"}


def write_golden(path: Path, script: str, torch: str, seed: int, content: dict[str, Any]) -> None:
    """Writes a golden file; the same content gives the same bytes on the same day."""
    provenance = {
        "torch": torch,
        "script": f"tests/conformance/{Path(script).name}",
        "date": time.strftime("%Y-%m-%d"),
        "seed": seed,
    }
    text = json.dumps({"provenance": provenance, **content}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    print(f"{path.name}: {path.stat().st_size:,} bytes")


def read_golden(name: str) -> dict[str, Any]:
    """The content of a golden file. Raises ValueError for one that does not say what it is."""
    content: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / name).read_bytes()))
    provenance = content.pop("provenance", {})
    if set(provenance) != PROVENANCE:
        raise ValueError(f"{name} does not say where it comes from: {provenance}")
    return content

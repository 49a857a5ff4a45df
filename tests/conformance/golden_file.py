"""Golden data: facts about PyTorch, each file with where they come from.

A file is gzipped JSON whose first member, ``provenance``, says which script took it from which
release of torch, when, and with which seed. They are not edited by hand: run the script again.

A live run (``live.py``) records the same files, larger and from another seed, in a folder of its
own, and has the tests read them there. It says so in the environment:

    OPDISPATCH_CONFORMANCE_GOLDEN   the folder
    OPDISPATCH_CONFORMANCE_SEED     the seed of recorders, and of tests beside PyTorch
    OPDISPATCH_CONFORMANCE_SCALE    how many times as much they record and draw
"""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path
from typing import Any

GOLDEN = Path(os.environ.get("OPDISPATCH_CONFORMANCE_GOLDEN") or Path(__file__).with_name("golden"))
SEED = int(os.environ.get("OPDISPATCH_CONFORMANCE_SEED", "213"))
SCALE = int(os.environ.get("OPDISPATCH_CONFORMANCE_SCALE", "1"))


def seeds(count: int) -> range:
    """Return seeds for programs that PyTorch runs itself: others for each ``SEED``."""
    return range(SEED * 10**6, SEED * 10**6 + count * SCALE)


PROVENANCE = {"torch", "script", "date", "seed"}


def write_golden(path: Path, script: str, torch: str, seed: int, content: dict[str, Any]) -> None:
    """Write a golden file; the same content gives the same bytes on the same day."""
    provenance = {
        "torch": torch,
        "script": f"tests/conformance/{Path(script).name}",
        "date": time.strftime("%Y-%m-%d"),
        "seed": seed,
    }
    text = json.dumps({"provenance": provenance, **content}, separators=(",", ":"))
    path.write_bytes(gzip.compress(text.encode(), 9, mtime=0))
    counts = [f"{len(v):,} {what}" for what, v in content.items() if isinstance(v, list | dict)]
    print(f"{path.name}: {', '.join(counts)}; {path.stat().st_size:,} bytes", flush=True)


def read_golden(name: str) -> dict[str, Any]:
    """The content of a golden file. Raises ValueError for one that does not say what it is."""
    content: dict[str, Any] = json.loads(gzip.decompress((GOLDEN / name).read_bytes()))
    provenance = content.pop("provenance", {})
    if set(provenance) != PROVENANCE:
        raise ValueError(f"{name} does not say where it comes from: {provenance}")
    return content

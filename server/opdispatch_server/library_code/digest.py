"""The SHA-256 of a library's content, which names it in the store and verifies uploads."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

_DIGEST = re.compile(r"[0-9a-f]{64}")


def is_digest(text: str) -> bool:
    """Return whether a text is a SHA-256 in lower-case hexadecimal, as uploads are named."""
    return _DIGEST.fullmatch(text) is not None


def digest_content(content: bytes) -> str:
    """Return the store's name for ``content``: its SHA-256 in hexadecimal."""
    return hashlib.sha256(content).hexdigest()


def digest_file(path: Path) -> str:
    """Return the SHA-256 of a file. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()

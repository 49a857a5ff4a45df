"""A log file that other users can neither read nor replace by a link."""

from __future__ import annotations

import os
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler


class PrivateFileHandler(WatchedFileHandler):
    """Writes records to a private file, and to a new one after it was moved away."""

    def _open(self) -> TextIOWrapper:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

        file: TextIOWrapper = open(  # noqa: SIM115  the handler closes it
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=opener
        )
        return file

"""A log file that others can neither read nor put a link in the place of."""

from __future__ import annotations

import os
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler


class PrivateFileHandler(WatchedFileHandler):
    """Writes records to such a file, and to a new one when it was moved away."""

    def _open(self) -> TextIOWrapper:
        def opener(path: str, flags: int) -> int:
            return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

        file: TextIOWrapper = open(  # noqa: SIM115  the handler closes it
            self.baseFilename, "a", encoding=self.encoding, errors=self.errors, opener=opener
        )
        return file

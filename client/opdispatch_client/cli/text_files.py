"""Text files as arguments."""

from __future__ import annotations

import os
from pathlib import Path

from opdispatch_client.cli.exit_codes import UsageError
from opdispatch_client.cli.standard_input import read_standard_input


def read_text(name: str) -> str:
    """Return the text of a file unchanged, including the last line end; ``-`` is standard input.

    Raises UsageError if there is no such file, or it is not UTF-8.
    """
    shown = "standard input" if name == "-" else repr(name)
    try:
        path = Path(os.path.expanduser(name))
        content = read_standard_input() if name == "-" else path.read_bytes()
        return content.decode()
    except FileNotFoundError:
        hint = f"a text that begins with @ is written '\"@{name}\"'"
        raise UsageError(f"there is no file {shown} ({hint})") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{shown} is not UTF-8: byte {error.start} is wrong") from None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot read {shown}: {getattr(error, 'strerror', None) or error}"
        ) from None

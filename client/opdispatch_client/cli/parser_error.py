"""The class of the errors that typer raises for invalid command lines."""

from __future__ import annotations

from typing import Final

import typer

# Only its subclass BadParameter is public.
PARSER_ERROR: Final[type[Exception]] = typer.BadParameter.__bases__[0]

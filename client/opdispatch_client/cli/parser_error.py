"""The class of the errors that typer raises for wrong command lines."""

from __future__ import annotations

from typing import Final

import typer

# The class is public only by way of its subclass BadParameter.
PARSER_ERROR: Final[type[Exception]] = typer.BadParameter.__bases__[0]

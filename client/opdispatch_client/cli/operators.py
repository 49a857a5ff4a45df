"""``opdispatch ops``, ``describe``, ``table``, ``wait``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.completion import complete_operator
from opdispatch_client.cli.listing_watch import Watch, show_listing

if TYPE_CHECKING:
    from opdispatch_client.listings import KernelSummary, OperatorSummary

PANEL = "Operators"

Operator = Annotated[
    str,
    typer.Argument(
        metavar="OP",
        help="An operator, such as image::sobel or math::add.Scalar.",
        autocompletion=complete_operator,
    ),
]


def ops(
    settings: Settings,
    pattern: Annotated[
        str,
        typer.Argument(
            metavar="PATTERN",
            help="A shell pattern over the name, such as 'image::*', or a part of it.",
            show_default=False,
            autocompletion=complete_operator,
        ),
    ] = "",
    watch: Watch = False,
) -> None:
    """List operators with their schemas, the dispatch keys of their kernels, and libraries."""
    with settings.connect() as session:
        show_listing(
            session.watch_registry if watch else None,
            lambda: session.operators(pattern),
            lambda found: _show(found, pattern, json=settings.json, indent=None if watch else 2),
        )


def _show(found: list[OperatorSummary], pattern: str, *, json: bool, indent: int | None) -> None:
    from opdispatch_client.cli.output import print_json, print_remark, print_table

    if json:
        print_json(found, indent=indent)
    elif not found:
        print_remark(f"no operator matches {pattern!r}" if pattern else "there are no operators")
    else:
        print_table(
            ("operator", "keys", "libraries", "kernel errors"),
            (
                (
                    operator.schema or f"{operator.name} (not defined)",
                    ", ".join(operator.keys),
                    ", ".join(operator.libraries),
                    str(operator.kernel_errors or ""),
                )
                for operator in found
            ),
        )


def describe(settings: Settings, operator: Operator) -> None:
    """Show an operator: schema, documentation, where its kernels were registered."""
    from opdispatch_client.cli.output import print_fields, print_json, print_lines, print_table

    with settings.connect() as session:
        found = session.describe(operator)
    if settings.json:
        print_json(found)
        return
    print_fields(
        (
            ("operator", found.name),
            ("schema", found.schema or "(not defined)"),
            ("defined at", found.defined_at),
            ("libraries", ", ".join(found.libraries)),
            ("tags", ", ".join(found.tags)),
            ("kernel errors", str(found.kernel_errors or "")),
        )
    )
    if found.documentation:
        print_lines(["", *(f"  {line}".rstrip() for line in found.documentation.splitlines())])
    if found.kernels:
        print_lines([""])
        print_table(
            ("key", "library", "interpreter", "registered at", ""),
            (
                (
                    kernel.key,
                    kernel.library,
                    kernel.interpreter,
                    "fallthrough" if kernel.fallthrough else kernel.registered_at,
                    "" if kernel.active else "overridden",
                )
                for kernel in found.kernels
            ),
        )


def table(settings: Settings, operator: Operator) -> None:
    """Show an operator's dispatch table: which kernel serves each key, and why."""
    from opdispatch_client.cli.output import print_json, print_remark, print_table

    with settings.connect() as session:
        rows = session.table(operator)
    if settings.json:
        print_json(rows)
    elif not rows:
        print_remark(f"{operator} has no kernels")
    else:
        print_table(
            ("key", "kernel", "reason"),
            (
                (
                    row.key,
                    "fallthrough" if row.fallthrough else row.kernel,
                    row.reason,
                )
                for row in rows
            ),
        )


def wait(
    settings: Settings,
    operator: Operator,
    key: Annotated[
        str | None,
        typer.Option(
            metavar="K",
            help="Wait for a kernel for this key, such as CUDA. Default: for the definition.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Wait until an operator is defined, for as long as --timeout says.

    The exit code is 1 if that did not happen in time; the message says who was expected to
    define it.
    """
    from opdispatch_client.cli.output import print_json, print_lines

    found: OperatorSummary | KernelSummary
    with settings.connect() as session:
        if key is None:
            found = session.wait_for_def(operator, settings.seconds)
            line = found.schema
        else:
            found = session.wait_for_impl(operator, key, settings.seconds)
            line = f"{operator} has a kernel for {found.key}, registered at {found.registered_at}"
    if settings.json:
        print_json(found)
    else:
        print_lines([line])


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the app."""
    for function in (ops, describe, table, wait):
        add_command(app, function.__name__, function, rich_help_panel=PANEL)

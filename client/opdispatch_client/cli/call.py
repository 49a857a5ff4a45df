"""``opdispatch call``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.exit_codes import UsageError
from opdispatch_client.cli.operators import PANEL, Operator
from opdispatch_client.cli.parser_error import PARSER_ERROR
from opdispatch_client.cli.split_arguments import is_negative_number

if TYPE_CHECKING:
    from opdispatch.schema.function_schema import FunctionSchema
    from opdispatch_client.blocking import Session

# NUL, which cannot occur in an argument: the operating system ends arguments with it.
_NUMBER_MARK = "\0"


class _CallCommand(TyperCommand):
    """Accepts ``-3`` as a number, where the parser would see an option."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        with_value = {
            name
            for option in self.get_params(ctx)
            if not getattr(option, "is_flag", False)
            for name in option.opts
        }
        marked: list[str] = []
        for place, arg in enumerate(args):
            if arg == "--":
                marked += args[place:]
                break
            is_value = place > 0 and args[place - 1] in with_value
            mark = _NUMBER_MARK if is_negative_number(arg) and not is_value else ""
            marked.append(mark + arg)
        try:
            return super().parse_args(ctx, marked)
        except PARSER_ERROR as error:
            option = getattr(error, "option_name", "")
            if not option.startswith("--") or getattr(error, "possibilities", None):
                raise
            name = option.lstrip("-").replace("-", "_")
            raise UsageError(
                f"no such option: {option}; an argument of the operator is written {name}=VALUE "
                "(see `opdispatch call --help`)"
            ) from None


def call(
    settings: Settings,
    operator: Operator,
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="ARG",
            help="A literal (3, -2.5, 1+2j, true, none, text, \"text\"), JSON ('[1, 2]'), or "
            "@FILE (.npy, .npz, an image; for a str argument, text), or - for standard input; "
            "NAME=ARG passes it by name. Where the schema wants a Tensor, numbers and lists become "
            "one; tensor:float32:[1,2] sets the dtype.",
            show_default=False,
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help="Write the tensors to a .npy file, a .npz file (several), or an image.",
            show_default=False,
        ),
    ] = None,
    trace: Annotated[
        bool, typer.Option("--trace", help="Show which kernels it visits.", show_default=False)
    ] = False,
    profile: Annotated[
        Path | None,
        typer.Option(
            "--profile",
            metavar="FILE",
            help="Profile the call: print a table, and write a trace for Perfetto (.json, "
            ".json.gz) or a picture (.svg).",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Call an operator.

    Examples:

    opdispatch call image::sobel @cat.png normalize=false -o edges.png

    opdispatch call math::add '[1, 2]' '[3, 4]'
    """
    from opdispatch_client.cli.array_files import check_output, write_arrays
    from opdispatch_client.cli.convert_by_schema import read_arguments
    from opdispatch_client.cli.output import print_json, print_lines, print_remark
    from opdispatch_client.cli.profile_files import check_profile_file, write_profile
    from opdispatch_client.cli.results import (
        describe_returns,
        list_arrays,
        list_returns,
        value_to_json,
    )

    if output is not None:
        check_output(output)
    if profile is not None:
        check_profile_file(profile)
    texts = [text.removeprefix(_NUMBER_MARK) for text in arguments or ()]
    with settings.connect() as session:
        read = read_arguments(texts, _find_overloads(session, operator))
        if output is not None and read.schema is not None:
            _check_returns(read.schema, output)
        # The arguments were converted for this overload: no other may get them.
        name = str(read.schema.name) if read.schema else operator
        prof = session.profile(record_shapes=True)
        with prof if profile is not None else nullcontext():
            if trace:
                result, lines = session.trace(name, *read.args, **read.kwargs)
            else:
                result, lines = session.call(name, *read.args, **read.kwargs), []
    returns = list_returns(result, read.schema)
    if settings.json:
        document: dict[str, Any] = {"returns": [value_to_json(value) for _, value in returns]}
        # On one line: arrays would otherwise take a line per number.
        print_json(document | ({"trace": lines} if trace else {}), indent=None)
    else:
        print_lines(map(str, lines))
        print_lines(describe_returns(returns, tensors=output is None))
    if output is not None:
        write_arrays(output, list_arrays(returns))
        print_remark(f"wrote {output}")
    if profile is not None:
        if not settings.json:
            print_lines(prof.key_averages().table().splitlines())
        write_profile(prof, profile)
        print_remark(f"wrote {profile}")


def _find_overloads(session: Session, operator: str) -> list[FunctionSchema]:
    """Return the schemas that the name may mean, the one without an overload name first."""
    from opdispatch.schema.parser import parse_schema

    found = [
        summary
        for summary in session.operators(operator)
        if summary.schema and (summary.name == operator or summary.name.startswith(f"{operator}."))
    ]
    return [parse_schema(summary.schema) for summary in found]


def _check_returns(schema: FunctionSchema, output: Path) -> None:
    """Raise UsageError if the file cannot hold the operator's results."""
    tensors = [returned for returned in schema.returns if returned.type.dispatches]
    if len(tensors) > 1 and output.suffix.lower() != ".npz":
        raise UsageError(
            f"{schema.name} returns {len(tensors)} tensors, but {str(output)!r} can hold only "
            "one; use a .npz file for several"
        )


def register(app: typer.Typer) -> None:
    """Add the command to the app."""
    add_command(app, "call", call, cls=_CallCommand, rich_help_panel=PANEL)

"""``opdispatch call`` with plain arguments, without the modules that other commands need.

Importing Typer, gRPC, NumPy and the dispatcher takes three times as long as such a call. Calls that
are not plain are left to ``call``, before anything has been sent.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable

from opdispatch_client.cli.exit_codes import Exit
from opdispatch_client.cli.plain_command import NotPlainError, PlainCommand
from opdispatch_client.cli.plain_results import describe_plain, plain_to_json, plain_value
from opdispatch_client.cli.plain_words import (
    plain_request,
    read_schema,
)
from opdispatch_client.lanes.single_call import SingleCall
from opdispatch_wire.address_forms import (
    AddressFormError,
    UnixAddress,
    default_address,
    parse_address,
)
from opdispatch_wire.printable import escape_in_json, printable_lines
from opdispatch_wire.v1 import execution_pb2

_TIMEOUT = 30.0
"""Equal to ``command.TIMEOUT_DEFAULT``, as a test checks."""


def call_plainly(command: PlainCommand) -> Exit | None:
    """Make the call of a command line; return None, with nothing sent, if it is not plain.

    Raises the error of a call that was sent.
    """
    with contextlib.suppress(NotPlainError, AddressFormError):
        address = command.address or default_address()
        parsed = parse_address(address)
        if isinstance(parsed, UnixAddress):
            return _call(command, address, parsed.path)
    return None


def _call(command: PlainCommand, address: str, path: str) -> Exit | None:
    timeout = _TIMEOUT if command.timeout is None else command.timeout or None
    try:
        lane = SingleCall.open(path, command.operator, timeout)
    except (OSError, ValueError):
        return None
    with lane:
        if len(lane.schemas) != 1:
            return None
        schema = lane.schemas[0]
        name, arguments, _ = read_schema(schema)
        request = plain_request(name, arguments, command.arguments)
        try:
            reply = lane.make(request)
        except TimeoutError:
            from opdispatch_wire.status import late_answer_error

            raise late_answer_error(address, name) from None
        except (OSError, ValueError) as error:
            from opdispatch_wire.status import lost_connection_error

            raise lost_connection_error(address, str(error)) from error
    # outside the block below: the call's own error may be of such a class
    lines = _lines_of(reply, schema, as_json=command.json)
    try:
        _print(lines)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return Exit.BROKEN_PIPE
    return Exit.OK


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        print(line)
    sys.stdout.flush()


def _lines_of(reply: execution_pb2.CallReply, schema: str, *, as_json: bool) -> list[str]:
    """Return the output of a call. Raises the error of the reply."""
    value = plain_value(reply)
    if value is not None and as_json:
        found = plain_to_json(value)
        if found is not None:
            import json

            document = json.dumps({"returns": [found]}, ensure_ascii=False, allow_nan=False)
            return [escape_in_json(document)]
    elif value is not None and (lines := describe_plain(value)) is not None:
        return list(map(printable_lines, lines))
    return _other_lines_of(reply, schema, as_json=as_json)


def _other_lines_of(reply: execution_pb2.CallReply, schema: str, *, as_json: bool) -> list[str]:
    from opdispatch.schema.parser import parse_schema
    from opdispatch_client.cli.results import describe_returns, list_returns, value_to_json
    from opdispatch_wire.calls import result_of_reply

    returns = list_returns(result_of_reply(reply, (), {}), parse_schema(schema))
    if as_json:
        import json

        document = json.dumps(
            {"returns": [value_to_json(value) for _, value in returns]},
            ensure_ascii=False,
            allow_nan=False,
        )
        return [escape_in_json(document)]
    return list(map(printable_lines, describe_returns(returns)))

"""Exit codes of commands, and errors as one line on stderr."""

from __future__ import annotations

import sys
import traceback
from enum import IntEnum

from opdispatch_wire.printable import printable_message

REQUEST_TO_REPORT = "this is a bug in opdispatch; please report it with the output of --debug"


class Exit(IntEnum):
    """The exit codes of ``opdispatch``; scripts may rely on them."""

    OK = 0
    FAILED = 1  # the request failed
    USAGE = 2  # the command line is wrong; nothing was sent
    INTERRUPTED = 130  # Ctrl-C
    BROKEN_PIPE = 141  # the reader of the output has gone


class CommandError(Exception):
    """The command cannot do what was requested; the message is for the user."""

    exit_code: Exit = Exit.FAILED


class UsageError(CommandError):
    """The command line is wrong."""

    exit_code: Exit = Exit.USAGE


class RequestFailedError(Exception):
    """Carries an OpdispatchError, its cause, past Click.

    A KernelError may also be an EOFError or a BrokenPipeError. Click would mistake it for one of
    the terminal's, and exit silently.
    """


def report_failure(error: Exception, *, debug: bool) -> Exit:
    """Report an error on stderr, with tracebacks if `debug`; return the exit code."""
    from opdispatch.errors import OpdispatchError
    from opdispatch_client.cli.parser_error import PARSER_ERROR

    remote = ""
    if isinstance(error, RequestFailedError) and isinstance(error.__cause__, OpdispatchError):
        error = error.__cause__
    if isinstance(error, PARSER_ERROR):
        code, message = Exit.USAGE, _describe_parser_error(error)
    elif isinstance(error, CommandError):
        code, message = error.exit_code, str(error)
    elif isinstance(error, OpdispatchError):
        # An invalid address can only be a mistake on the command line.
        code = Exit.USAGE if error.code == "address" else Exit.FAILED
        message = str(error)
        remote = error.facts.get("traceback", "")
        if remote and not debug:
            message += " (--debug shows the traceback)"
    elif isinstance(error, OSError) and error.strerror:
        code, message = Exit.FAILED, _describe_os_error(error)
    else:
        code, message = Exit.FAILED, f"{type(error).__name__}: {error} ({REQUEST_TO_REPORT})"
    if debug:
        shown = "".join(traceback.format_exception(error)).rstrip()
        if remote.strip() not in shown:  # it may already be a note of the error
            shown += f"\n\nThe traceback of the other process:\n{remote.rstrip()}"
        print(printable_message(shown), file=sys.stderr)
    print(f"opdispatch: {printable_message(message)}", file=sys.stderr)
    return code


def _describe_parser_error(error: Exception) -> str:
    """Return the parser's own message, and where to find help."""
    text = str(getattr(error, "format_message", error.__str__)()).strip() or "missing command"
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "opdispatch")
    return f"{text[:1].lower()}{text[1:].rstrip('.')} (see `{path} --help`)"


def _describe_os_error(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)

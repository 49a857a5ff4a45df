"""The ``opdispatch`` command.

    app.py               assembles the commands, including those of other packages
    command.py           the options of every command: --address, --timeout, --json, --debug
    exit_codes.py        exit codes, and errors as one line on stderr
    parser_error.py      the parser's error class
    plain_values.py      values that do not need typer's conversion
    output.py            tables for people, JSON for programs
    completion.py        shell completion of names from the running daemon
    libraries.py         load, unload, libraries
    interpreters.py      interpreters, revive
    top.py               top
    health.py            health
    upload_progress.py   the progress of an upload
    scale.py             scale
    rollback.py          rollback
    drain.py             drain
    reload_on_save.py    load --watch
    listing_watch.py     --watch of lists
    operators.py         ops, describe, table
    call.py              call
    plain_call.py        call with plain arguments and few imports:
    plain_command.py     recognizes such command lines
    plain_words.py       parses their arguments and schemas
    plain_results.py     formats their results
    split_arguments.py   step 1: which words are arguments, by name or position
    literal_words.py     step 2: numbers, strings and keywords
    parse_literals.py    and other literals
    convert_by_schema.py step 3: conversion to the types of the schema
    array_files.py       .npy, .npz and images, read and written
    text_files.py        strings read from files
    standard_input.py    standard input, read once
    results.py           results as text, JSON or arrays
    profile_files.py     profiles written to files

Modules that need gRPC or NumPy are imported by the commands that use them, so that
``opdispatch --help`` answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from opdispatch_client.cli.exit_codes import Exit, report_failure
from opdispatch_client.cli.plain_command import find_plain_command

_COMPLETION = "_OPDISPATCH_COMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code.

    By default it is the command line of the process, which then ends.
    """
    if argv is not None:
        return _run(argv)
    code = _run(sys.argv[1:])
    gc.freeze()  # otherwise the collection at exit would traverse all imported objects once more
    return code


def _run(argv: Sequence[str]) -> int:
    # If it is closed (`>&-`), it is None in Python.
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - open until the end
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115
    command = find_plain_command(argv)
    if command is not None and _COMPLETION not in os.environ:
        try:
            from opdispatch_client.cli.plain_call import call_plainly

            plainly = call_plainly(command)
        except KeyboardInterrupt:
            return Exit.INTERRUPTED
        except Exception as error:
            return report_failure(error, debug=False)
        if plainly is not None:
            return plainly

    from opdispatch_client.cli.app import build_app
    from opdispatch_client.cli.command import Settings, drop_unwritable_output
    from opdispatch_client.cli.completion import colons_in_bash

    settings = Settings()
    try:
        with colons_in_bash():
            code = build_app().main(
                args=list(argv),
                prog_name="opdispatch",
                standalone_mode=False,
                obj=settings,
            )
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except Exception as error:
        code = report_failure(error, debug=settings.debug)
        drop_unwritable_output()
        return code
    return code if isinstance(code, int) else Exit.OK

"""The ``opdispatch`` command.

    app.py               the commands put together, those of other packages included
    command.py           what every command has: --address, --timeout, --json, --debug
    outcome.py           exit codes, and errors as one line on stderr
    parser_error.py      the error of a wrong command line
    plain_values.py      values that typer need not convert
    output.py            tables for people, JSON for programs
    completion.py        names from the running daemon for the shell
    libraries.py         load, unload, libraries
    interpreters.py      interpreters, revive
    top.py               top
    health.py            health
    upload_progress.py   how far an upload is
    replicas.py          scale, rollback, drain
    reload_on_save.py    load --watch
    listing_watch.py     --watch of lists
    operators.py         ops, describe, table
    call.py              call
    plain_call.py        the same, of plain arguments, with few imports:
    plain_command.py     which those are
    plain_words.py       their words and their schemas
    plain_results.py     their results
    split_arguments.py   first: which words are arguments, by name or by place
    literal_words.py     then: numbers, texts and words
    parse_literals.py    and what else a text means on its own
    convert_by_schema.py last: what it means to an operator's schema
    array_files.py       .npy, .npz and images, read and written
    text_files.py        texts in files
    standard_input.py    standard input, read once
    results.py           what an operator returned, as text, JSON or arrays
    profile_files.py     what a call takes, in a file

Modules that need gRPC or NumPy are imported by the commands that use them, so that
``opdispatch --help`` answers at once.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence

from opdispatch_client.cli.outcome import Exit, report_failure
from opdispatch_client.cli.plain_command import find_plain_command

_COMPLETION = "_OPDISPATCH_COMPLETE"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default that of the process, which then ends, and return its exit
    code.
    """
    if argv is not None:
        return _run(argv)
    code = _run(sys.argv[1:])
    gc.freeze()  # or the end of the process would go through all that it has imported once more
    return code


def _run(argv: Sequence[str]) -> int:
    # Without one (`>&-`), Python has None there.
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

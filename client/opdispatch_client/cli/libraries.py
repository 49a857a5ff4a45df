"""``opdispatch load``, ``unload``, ``libraries``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from opdispatch_client.cli.command import Settings, add_command
from opdispatch_client.cli.completion import complete_interpreter, complete_library, complete_place
from opdispatch_client.cli.listing_watch import Watch, show_listing

if TYPE_CHECKING:
    from opdispatch_client.listings import Library, LoadedLibrary

PANEL = "Libraries"

LibraryName = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The library.", autocompletion=complete_library),
]
"""The argument of commands for one library."""

# Least amount of freed memory, in bytes, that is reported: less may be due to other work.
WORTH_TELLING = 2**20
_MOST_OPERATORS = 20
"""Most operators of a library that ``load`` lists."""


def load(
    settings: Settings,
    source: Annotated[
        str,
        typer.Argument(
            metavar="FILE_OR_MODULE",
            help="A .py file, a .zip archive, a package folder, or the dotted name of a module "
            "that the interpreter can import.",
        ),
    ],
    name: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The library's name. Default: that of the file.",
            show_default=False,
        ),
    ] = None,
    interpreter: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The interpreter to load it into. Default: the daemon chooses.",
            show_default=False,
            autocompletion=complete_interpreter,
        ),
    ] = None,
    interpreters: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="How many interpreters hold it; calls are balanced over them. Default: as many "
            "as for the previous version, or 1.",
            show_default=False,
        ),
    ] = None,
    min_ready: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Publish it when this many interpreters have imported it; until then, calls use "
            "the previous version. Default: as many as serve that version.",
            show_default=False,
        ),
    ] = None,
    on: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|DEVICE",
            help="An interpreter, as with --interpreter, or any interpreter with that device: "
            "cpu, cuda, cuda:1, or one for which a library has a backend.",
            show_default=False,
            autocompletion=complete_place,
        ),
    ] = None,
    requirements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            exists=True,
            dir_okay=False,
            help="A requirements file: the library gets interpreters in an environment with these "
            "packages. Default: the `# /// script` metadata in the library, if any.",
            show_default=False,
        ),
    ] = None,
    python: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="The Python of an existing environment on the daemon's machine, for the "
            "library's interpreters.",
            show_default=False,
        ),
    ] = None,
    isolated: Annotated[
        bool,
        typer.Option(
            "--isolated",
            help="Give it separate interpreters, which end when it is unloaded.",
            show_default=False,
        ),
    ] = False,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch",
            help="Reload the file whenever it is saved, until Ctrl-C. "
            r"Needs opdispatch\[watch].",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Load a kernel library into the running daemon.

    Files are uploaded, so the daemon may run on another machine.

    If a library of that name is loaded already, the new content replaces it:
    calls that start from then on use it.
    """
    from opdispatch_client.cli.exit_codes import UsageError
    from opdispatch_client.cli.output import show_steps
    from opdispatch_client.cli.upload_progress import show_upload

    if interpreter is not None and on is not None:
        raise UsageError("--interpreter and --on exclude each other; give one of them")
    with settings.connect() as session:

        def load_now() -> None:
            with (
                show_upload() as on_upload,
                show_steps() as on_progress,
                _says_how_to_upload(source),
            ):
                library = session.load(
                    source,
                    name=name,
                    interpreter=interpreter,
                    interpreters=interpreters,
                    min_ready=min_ready,
                    on=on,
                    requirements=requirements,
                    python=python,
                    isolated=isolated,
                    on_progress=on_progress,
                    on_upload=on_upload,
                )
            _print_loaded(library, json=settings.json)

        if watch:
            from opdispatch_client.cli.reload_on_save import load_and_watch

            load_and_watch(source, load_now, debug=settings.debug)
        else:
            load_now()


@contextmanager
def _says_how_to_upload(source: str) -> Iterator[None]:
    """Add to the error for an unknown module the local file or folder that could be uploaded."""
    from opdispatch_wire.errors import LibraryLoadError

    try:
        yield
    except LibraryLoadError as error:
        file, folder = Path(f"{source}.py"), Path(source)
        if f"No module named {source!r}" in error.message:
            if file.is_file():
                error.hint = f"`opdispatch load {file}` uploads the file that is here"
            elif folder.is_dir():
                error.hint = f"`opdispatch load {folder}/` uploads the folder that is here"
        raise


def _print_loaded(library: LoadedLibrary, *, json: bool) -> None:
    from opdispatch_client.cli.output import print_json, print_lines

    if json:
        print_json(library)
        return
    where = ", ".join(library.interpreters) or "no interpreter"
    if library.waiting_for:
        where += f"; it waits for {library.waiting_for}"
    if library.already_loaded:
        print_lines([f"{library.name} v{library.version} was loaded already, in {where}"])
    else:
        print_lines([f"loaded {library.name} v{library.version} in {where}"])
    print_lines(f"  {operator}" for operator in library.operators[:_MOST_OPERATORS])
    if (more := len(library.operators) - _MOST_OPERATORS) > 0:
        print_lines([f"  and {more} more, which `opdispatch ops` lists"])


def unload(
    settings: Settings,
    name: LibraryName,
    version: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=1,
            help="Only this version; the one below it, if kept, becomes active again. "
            "Default: every version.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Unload a library: its operators are gone at once, calls in flight finish."""
    from opdispatch_client.cli.output import format_size, print_json, print_lines

    with settings.connect() as session:
        unloaded = session.unload_and_measure(name, version=version)
    active = unloaded.active
    if settings.json:
        print_json(unloaded)
        return
    what = f"{name} v{version}" if version else name
    now = f"; {active.name} v{active.version} is active now" if active else ""
    print_lines([f"unloaded {what}{now}"])
    size = unloaded.memory_bytes or 0
    if unloaded.memory_exact:
        print_lines([f"  its interpreters end and free {format_size(size)}"])
    elif size >= WORTH_TELLING:
        print_lines([f"  its interpreters have freed {format_size(size)}"])


def libraries(
    settings: Settings,
    all_versions: Annotated[
        bool,
        typer.Option("--all", help="Also versions kept below a newer one.", show_default=False),
    ] = False,
    watch: Watch = False,
) -> None:
    """List the loaded libraries."""
    with settings.connect() as session:
        show_listing(
            (lambda: session.watch_registry(activity=True)) if watch else None,
            lambda: session.libraries(all_versions=all_versions),
            lambda found: _show(found, json=settings.json, indent=None if watch else 2),
        )


def _show(found: list[Library], *, json: bool, indent: int | None) -> None:
    from opdispatch_client.cli.output import format_time, print_json, print_remark, print_table

    if json:
        print_json(found, indent=indent)
    elif not found:
        print_remark("no libraries are loaded")
    else:
        print_table(
            (
                *("name", "version", "state", "operators", "interpreters", "source", "sha256"),
                *("loaded at", "loaded by", "kernel errors"),
            ),
            (
                (
                    library.name,
                    f"v{library.version}",
                    library.state or ("active" if library.active else "kept"),
                    str(len(library.operators)),
                    _describe_interpreters(library),
                    library.source,
                    library.sha256[:12],
                    format_time(library.loaded_at),
                    library.loaded_by,
                    str(library.kernel_errors or ""),
                )
                for library in found
            ),
        )
        for library in found:
            if library.error:
                print_remark(f"{library.name} has failed: {library.error}")
            if library.waiting_for:
                print_remark(f"{library.name} waits for {library.waiting_for}")


def _describe_interpreters(library: Library) -> str:
    """Describe the primary, the replicas, and how many there should be if there are fewer."""
    names = ", ".join(library.interpreters)
    held, wanted = len(library.interpreters), library.interpreters_wanted
    return f"{names} ({held} of {wanted})".lstrip() if library.active and held < wanted else names


def register(app: typer.Typer) -> None:
    """Add the commands of this file to the app."""
    for function in (load, unload, libraries):
        add_command(app, function.__name__, function, rich_help_panel=PANEL)

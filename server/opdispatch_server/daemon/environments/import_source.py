"""The content that a version of a library is imported from, and the environment it needs."""

from __future__ import annotations

from dataclasses import dataclass

from opdispatch_server.daemon.environments.library_home import SHARED_HOME, LibraryHome


@dataclass(frozen=True, slots=True)
class LibrarySource:
    """The source of an import: an upload, kept in the library store, or a module's dotted name."""

    # The file name of an upload, or the module's dotted name.
    label: str
    sha256: str
    is_module: bool = False
    # The same content with another home is another version.
    home: LibraryHome = SHARED_HOME

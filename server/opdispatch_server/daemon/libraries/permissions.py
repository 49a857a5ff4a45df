"""Check that an identity may load, replace or remove a version of a library."""

from __future__ import annotations

from opdispatch_server.access.identity import Identity
from opdispatch_server.access.namespaces import check_registrations
from opdispatch_server.daemon.libraries.version import LibraryVersion


def check_version(identity: Identity, version: LibraryVersion) -> None:
    """Raise PermissionDeniedError unless ``identity`` may register what a version registers.

    For a version that waits for an interpreter, its previous registrations count.
    """
    claimed = [each.namespace for each in version.registrations if each.kind == "library"]
    check_registrations(
        identity,
        version.name,
        version.operators,
        claimed,
        has_fallbacks=version.has_fallbacks,
        device_types=version.batch.device_types,
    )

"""Warnings about names that a later version removes."""

from __future__ import annotations

from opdispatch.local_state.caller_frames import warn_caller


def warn_deprecated(
    name: str,
    *,
    since: str,
    removed: str,
    replacement: str,
    category: type[Warning] = DeprecationWarning,
) -> None:
    """Warn the nearest caller outside of this distribution that ``name`` is deprecated.

    ``since`` is the version that deprecated it, ``removed`` the one that will not have it.
    Python's default filter shows the warning once for each line that calls. ``category`` is for
    what PyTorch warns of with another class.
    """
    warn_caller(
        f"{name} is deprecated since opdispatch {since} and will be removed in {removed}: "
        f"use {replacement}",
        category,
    )

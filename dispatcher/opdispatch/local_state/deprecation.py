"""Warnings about deprecated names."""

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
    """Warn the nearest caller outside this distribution that ``name`` is deprecated.

    ``since`` is the version that deprecated it, ``removed`` the one that will remove it. Python's
    default filter shows the warning once for each calling line. ``category`` is for cases in which
    PyTorch warns with another class.
    """
    warn_caller(
        f"{name} is deprecated since opdispatch {since} and will be removed in {removed}: "
        f"use {replacement}",
        category,
    )

"""The ids of values kept for clients, as both halves of the server interpret them."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from opdispatch_wire.errors import WireError
from opdispatch_wire.remote_values import PREFIX_BYTES, SESSION_BYTES
from opdispatch_wire.v1 import remote_pb2


def ids_meant(ids: Collection[bytes], known: Iterable[bytes]) -> list[bytes]:
    """Return the ids; a prefix stands for those of ``known`` that begin with it."""
    meant = [number for number in ids if len(number) != PREFIX_BYTES]
    prefixes = {number for number in ids if len(number) == PREFIX_BYTES}
    if prefixes:
        meant += [number for number in known if number[:PREFIX_BYTES] in prefixes]
    return meant


def check_keep(keep: remote_pb2.Keep) -> None:
    """Raise WireError if the kept values could not have valid ids."""
    for name, value, length in (
        ("session", keep.session, SESSION_BYTES),
        ("prefix", keep.prefix, PREFIX_BYTES),
    ):
        if len(value) != length:
            raise WireError(f"$.keep.{name} has {len(value)} bytes; expected {length}")

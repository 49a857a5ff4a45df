"""The message limit between the daemon and its interpreters."""

from __future__ import annotations

from opdispatch_wire.message_size import MAX_MESSAGE_BYTES_DEFAULT, MAX_MESSAGE_BYTES_HIGHEST

# What the daemon adds to a request must not make it exceed the limit.
FORWARDING_ROOM = 64 * 1024


def internal_message_limit(max_message_bytes: int) -> int:
    """Return the limit between daemon and interpreters, given the limit for clients.

    Never a small one: the registrations of a library are sent as one message.
    """
    limit = max(max_message_bytes, MAX_MESSAGE_BYTES_DEFAULT)
    return min(limit + FORWARDING_ROOM, MAX_MESSAGE_BYTES_HIGHEST)

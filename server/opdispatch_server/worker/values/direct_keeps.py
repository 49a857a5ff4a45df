"""The values that direct calls keep under a grant of the daemon, until the daemon learns of them.

Note [Values kept without the daemon]
    The daemon counts, moves and releases values. It learns of values kept by direct calls only when
    it asks: when a call that it routes names an unknown id, when a client releases a value or is
    near its limits, or when the values are to be counted. Until then a value counts towards the
    grant that the daemon has given the client in this interpreter: at most so many values, of so
    many bytes. A call whose results exceed the grant keeps none, and is repeated through the
    daemon: it is one that may run twice.

    The query may release values. Those that the daemon does not know yet are dropped here, without
    ever being reported. A prefix stands for all values of one call, which may still be running: its
    caller has given up, and the call will keep nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from opdispatch_server.value_ids import ids_meant
from opdispatch_wire.remote_values import PREFIX_BYTES, RemoteFacts, store_key
from opdispatch_wire.v1 import remote_pb2

MOST_UNWANTED: Final = 1024
"""How many calls of a client are remembered that are to keep nothing."""

Kept = Sequence[tuple[bytes, RemoteFacts]]
"""The ids of values, and their facts."""


class _Account:
    """The values of one client, and how much more it may keep."""

    __slots__ = ("bytes", "untold", "unwanted", "values")

    def __init__(self) -> None:
        self.values = 0
        self.bytes = 0
        # The values of which the daemon has not learned.
        self.untold: dict[bytes, RemoteFacts] = {}
        # Prefixes of calls that are to keep nothing, the oldest first.
        self.unwanted: dict[bytes, None] = {}


class DirectKeeps:
    """The values kept by direct calls, by client. Any thread may use it.

    See Note [Values kept without the daemon]. ``_mutex`` protects the accounts, except that
    ``has_room`` reads without it. ``release`` releases values in the store.
    """

    def __init__(self, release: Callable[[remote_pb2.ReleaseValues], None]) -> None:
        self._release = release
        self._mutex = threading.Lock()
        self._accounts: dict[bytes, _Account] = {}

    def has_room(self, session: bytes) -> bool:
        """Return whether a direct call may keep anything for that client."""
        account = self._accounts.get(session)
        return account is not None and account.values > 0 and account.bytes > 0

    def note(self, session: bytes, prefix: bytes, kept: Kept, nbytes: int) -> bool:
        """Record the values that a direct call has kept; release them if they exceed the grant.

        Return whether they are kept.
        """
        with self._mutex:
            account = self._accounts.get(session)
            is_kept = (
                account is not None
                and prefix not in account.unwanted
                and len(kept) <= account.values
                and nbytes <= account.bytes
            )
            if account is not None and is_kept:
                account.values -= len(kept)
                account.bytes -= nbytes
                account.untold.update(kept)
        if not is_kept:
            self.drop(session, prefix)
        return is_kept

    def drop(self, session: bytes, prefix: bytes) -> None:
        """Release what a call kept that has since failed."""
        self._release(remote_pb2.ReleaseValues(session=session, ids=(prefix,)))

    def settle(self, message: remote_pb2.SettleValues) -> remote_pb2.SettledValues:
        """Report the values kept since the last time, without released ones.

        Store the new grant.
        """
        session = message.session
        with self._mutex:
            account = self._accounts.setdefault(session, _Account())
            account.values, account.bytes = message.values, message.bytes
            dropped = [
                number
                for number in ids_meant(message.release, account.untold)
                if account.untold.pop(number, None) is not None
            ]
            self._refuse(account, message.release)
            untold, account.untold = account.untold, {}
        if dropped:
            keys = [store_key(number, 0) for number in dropped]
            self._release(remote_pb2.ReleaseValues(session=session, ids=keys))
        settled = remote_pb2.SettledValues()
        for number, facts in untold.items():
            remote = settled.values.add(id=number)
            facts.write_to(remote)
        return settled

    def close(self, session: bytes) -> None:
        """Forget a client that has gone, with all of its values."""
        with self._mutex:
            self._accounts.pop(session, None)

    def clear(self) -> None:
        """Forget every client."""
        with self._mutex:
            self._accounts.clear()

    @staticmethod
    def _refuse(account: _Account, released: Iterable[bytes]) -> None:
        for prefix in released:
            if len(prefix) == PREFIX_BYTES:
                account.unwanted[prefix] = None
        while len(account.unwanted) > MOST_UNWANTED:
            del account.unwanted[next(iter(account.unwanted))]

"""The writer's side of the dispatcher: all registrations, and their publication."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from opdispatch.dispatch.attribute_stores import AttributeStore, store_at_once
from opdispatch.dispatch.duplicate_definition import refuse_duplicate
from opdispatch.dispatch.left_right import LeftRight
from opdispatch.dispatch.name_table import NameChange, NameTable
from opdispatch.dispatch.operator_entry import OperatorEntry
from opdispatch.dispatch.operator_state import Fallbacks, OperatorState
from opdispatch.dispatch.registration import (
    Registration,
    RegistrationHandle,
    RuleKey,
    rule_key,
    runtime_keys_of_fallback,
)
from opdispatch.dispatch.signature_check import check_signatures
from opdispatch.dispatch.transaction import ChangeLog, Transaction
from opdispatch.errors import RegistrationError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.schema.function_schema import OperatorName

Handles = list[RegistrationHandle]


class Registry:
    """The registrations of one dispatcher, newest first.

    Guards      ``mutex`` is the right to register and to undo. Readers never take it: they look
                names up in ``names``, and each entry publishes its own state.
    Invariants  outside a transaction:
                I1  ``entries`` has exactly the operators with a definition or a kernel, and
                    ``names`` leads to the same entries;
                I2  the state of every entry is the snapshot of its registrations and of
                    ``published_fallbacks``, which are the newest of ``fallbacks``.
                Always: a registration that raises has changed nothing.
    ``changed`` is notified at the end of every publication; its waiters are the dispatcher's
    ``wait_for_def`` and ``wait_for_impl``.
    """

    def __init__(self, make_entry: Callable[[OperatorName], OperatorEntry]) -> None:
        self._make_entry = make_entry
        self.mutex = threading.RLock()
        self.changed = threading.Condition(self.mutex)
        self.entries: dict[OperatorName, OperatorEntry] = {}
        self.namespaces: dict[str, Handles] = {}
        self.fallbacks: dict[DispatchKey, Handles] = {}
        self.published_fallbacks = Fallbacks({})
        self.rules: dict[RuleKey, Handles] = {}
        self.published_rules: Mapping[RuleKey, Registration] = {}
        self.names: LeftRight[NameTable] = LeftRight(NameTable)
        self.allowed_keys: frozenset[DispatchKey] | None = None  # None allows every key
        self.skipped: Handles = []
        self.epoch = 0
        self.on_defined: Callable[[OperatorName], None] = lambda name: None
        self.on_undefined: Callable[[OperatorName], None] = lambda name: None
        self._numbers = itertools.count(1)
        self._log: ChangeLog | None = None
        self._depth = 0
        self._waiting = 0
        self._busy = False  # see Note [Finalizers may undo]
        self._deferred: Handles = []
        # The id of the thread in a transaction. Other threads compare it without the mutex: they
        # never read their own id.
        self._owner: int | None = None

    # -- transactions ---------------------------------------------------------------------------

    @property
    def is_mine(self) -> bool:
        """Whether the calling thread is in a transaction, and so sees unpublished changes."""
        return self._owner == threading.get_ident()

    def begin(self) -> ChangeLog:
        """Enter a transaction, or a nested one."""
        self.mutex.acquire()
        self._depth += 1
        self._owner = threading.get_ident()
        return self._log or self.log

    def end(self) -> None:
        """Leave a transaction; the outermost one publishes."""
        try:
            while self._depth == 1 and (log := self._log) is not None and log.has_changes:
                self._log = None  # changes made meanwhile belong to another publication
                self._busy = True
                try:
                    self._publish(log)
                finally:
                    self._busy = False
                if self._deferred:
                    self._undo_deferred()
        finally:
            self._depth -= 1
            is_over = self._depth == 0
            if is_over:
                self._owner = self._log = None
            self.mutex.release()
            if is_over and self._deferred:
                self._undo_put_off()

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Notify ``changed`` after publications during the block, in which the caller waits."""
        with self.mutex:
            self._waiting += 1
        try:
            yield
        finally:
            with self.mutex:
                self._waiting -= 1

    @property
    def log(self) -> ChangeLog:
        """The changes of the caller's transaction."""
        assert self._depth, "only used within a transaction"
        log = self._log
        if log is None:
            log = self._log = ChangeLog()
        return log

    # -- changes; the caller is in a transaction ------------------------------------------------

    def register(self, handle: RegistrationHandle) -> None:
        """Register in a transaction of its own, or in the caller's.

        Raises RegistrationError, and then nothing has changed.
        """
        log = self.begin()
        start = len(log.changes)
        try:
            self.insert(handle, log)
        except BaseException:
            log.undo_to(start)
            raise
        finally:
            self.end()

    def insert(self, handle: RegistrationHandle, log: ChangeLog) -> None:
        """Register, and record it in the transaction's log.

        Raises RegistrationError, and then nothing has changed.
        """
        registration = handle.registration
        self._busy = True
        try:
            self._check(registration)
            handle.number = next(self._numbers)
            for handles in self._lists_of(registration):
                log.insert(handles, handle)
            self._touch(registration, log)
        finally:
            self._busy = False
        if self._deferred:
            self._undo_deferred()

    def remove(self, handle: RegistrationHandle) -> None:
        """Undo a live registration."""
        if self._busy:
            self._deferred.append(handle)
            return
        registration = handle.registration
        self._busy = True
        try:
            for handles in self._lists_of(registration):
                self.log.remove(handles, handle)
            self._touch(registration, self.log)
        finally:
            self._busy = False
        self._undo_deferred()

    # Note [Finalizers may undo]
    # The garbage collector can run a finalizer at almost any point of this file, in the thread
    # that holds the mutex, and a finalizer may close a handle. In the middle of a change such an
    # undo is only recorded; it is done as soon as the change is complete. A finalizer may also run
    # in the middle of a lookup, for which another thread that holds the mutex is waiting. So no
    # finalizer waits for the mutex: its holder carries out the recorded undos when it releases the
    # mutex.

    def undo(self, handles: Sequence[RegistrationHandle]) -> None:
        """Undo those handles that are live, in one publication."""
        if self.names.is_being_read:
            self._deferred.extend(handles)
            self._undo_put_off()
            return
        with Transaction(self):
            for handle in handles:
                if handle.live:
                    self.remove(handle)

    def _undo_put_off(self) -> None:
        while self._deferred and not self._busy and self.mutex.acquire(blocking=False):
            try:
                with Transaction(self):
                    self._undo_deferred()
            finally:
                self.mutex.release()

    def _undo_deferred(self) -> None:
        while self._deferred:
            handle = self._deferred.pop()
            if handle.live:
                self.remove(handle)

    def is_skipped(self, registration: Registration) -> bool:
        """Return whether the registration is for a key that is not allowed."""
        allowed = self.allowed_keys
        return allowed is not None and bool(registration.key) and registration.key not in allowed

    def find_handle(self, registration: Registration) -> RegistrationHandle | None:
        """Return the live handle of a kernel's registration. The caller holds the mutex."""
        entry = self.entries.get(registration.name) if registration.name is not None else None
        lists = entry.kernels if entry is not None else self.fallbacks
        found = (h for handles in lists.values() for h in handles if h.registration is registration)
        return next(found, None)

    def _lists_of(self, registration: Registration) -> list[Handles]:
        """Return the lists that hold ``registration``'s handle while it is live."""
        if self.allowed_keys is not None and self.is_skipped(registration):
            return [self.skipped]
        match registration.kind:
            case "library":
                return [self.namespaces.setdefault(registration.namespace, [])]
            case "def":
                assert registration.schema is not None
                return [self._entry(registration.schema.name).definitions]
            case "impl":
                assert registration.name is not None
                assert registration.key is not None
                return [self._entry(registration.name).kernels_for(registration.key)]
            case "fallback":
                keys = runtime_keys_of_fallback(registration.key)
                return [self.fallbacks.setdefault(key, []) for key in keys]
            case "dispatch_rule":
                return [self.rules.setdefault(rule_key(registration), [])]

    def _entry(self, name: OperatorName) -> OperatorEntry:
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = self._make_entry(name)
        return entry

    def _touch(self, registration: Registration, log: ChangeLog) -> None:
        if self.allowed_keys is not None and self.is_skipped(registration):
            return
        if registration.kind == "fallback":
            log.fallbacks_changed = True
        if registration.kind == "library":
            log.namespaces_changed = True
        if registration.kind == "dispatch_rule":  # the operator itself need not exist
            log.rules_changed = True
            return
        name = registration.schema.name if registration.schema else registration.name
        if name is not None:
            log.touched[self.entries[name]] = None  # `_lists_of` has created it

    def _check(self, registration: Registration) -> None:
        if self.allowed_keys is not None and self.is_skipped(registration):
            return
        is_impl = registration.kind == "impl"
        if is_impl and (registration.kernel is None or registration.key is None):
            raise RegistrationError("an implementation needs a kernel and a dispatch key")
        refuse_duplicate(self, registration)
        if is_impl or registration.kind == "def":
            name = registration.schema.name if registration.schema else registration.name
            assert name is not None
            check_signatures(self.entries.get(name), registration)

    # -- what callers see -----------------------------------------------------------------------

    def entry_seen(self, name: OperatorName) -> OperatorEntry | None:
        """Return the entry of that name, as the calling thread should see it."""
        if self.is_mine:
            entry = self.entries.get(name)
            return entry if entry is not None and entry.is_registered else None
        return self.names.read(lambda names: names.entries.get(name))

    def state_seen(self, entry: OperatorEntry) -> OperatorState | None:
        """Return the state of ``entry`` as the calling thread should see it; None if it is dead."""
        if not self.is_mine or not (entry in self.log.touched or self.log.fallbacks_changed):
            return entry.state
        if self.entries.get(entry.name) is not entry or not entry.is_registered:
            return None
        return entry.snapshot(self._newest_fallbacks())

    def rule_seen(self, name: OperatorName, cls: type[Any]) -> Registration | None:
        """Return an operator's rule for exactly that class, as the calling thread should see it."""
        if self.is_mine:
            handles = self.rules.get((name, cls))
            return handles[0].registration if handles else None
        return self.published_rules.get((name, cls))

    def _newest_fallbacks(self) -> Fallbacks:
        return Fallbacks({key: h[0].registration for key, h in self.fallbacks.items() if h})

    def _publish(self, log: ChangeLog) -> None:
        """Make the changes of the outermost transaction visible to all threads at once."""
        stores: list[AttributeStore] = [(self, "epoch", self.epoch + 1)]
        fallbacks = self.published_fallbacks
        if log.namespaces_changed:
            self.namespaces = {namespace: h for namespace, h in self.namespaces.items() if h}
        if log.fallbacks_changed:
            fallbacks = self._newest_fallbacks()
            stores.append((self, "published_fallbacks", fallbacks))
            for entry in self.entries.values():
                log.touched[entry] = None
        if log.rules_changed:
            self.rules = {key: handles for key, handles in self.rules.items() if handles}
            rules = {key: h[0].registration for key, h in self.rules.items()}
            stores.append((self, "published_rules", rules))
        touched = list(log.touched)
        lost, gained = [], []
        for entry in touched:
            # Callers know it with its definition, without one, or with another schema.
            was_defined = entry.state is not None and entry.state.definition is not None
            is_defined = bool(entry.definitions)
            changes_meaning = was_defined != is_defined or entry.needs_successor
            if changes_meaning and was_defined:
                lost.append(entry.name)
            if is_defined and (changes_meaning or self._has_moved(entry)):
                gained.append(entry.name)
        for name in lost:
            self.on_undefined(name)
        changes, dead = self._prepare(touched, fallbacks, stores)
        if changes:
            self.names.write(lambda names: names.update(changes), stores)
        else:
            store_at_once(stores)
        for entry in dead:
            entry.forget_handle()
        for name in gained:
            self.on_defined(name)
        if self._waiting:
            self.changed.notify_all()

    def _prepare(
        self, touched: Sequence[OperatorEntry], fallbacks: Fallbacks, stores: list[AttributeStore]
    ) -> tuple[list[NameChange], list[OperatorEntry]]:
        """Add to ``stores`` what makes the changes of the touched entries visible to callers.

        Returns the changes of the names, and the entries that die.
        """
        changes: list[NameChange] = []
        dead: list[OperatorEntry] = []
        for entry in touched:
            if entry.kernels:
                entry.prune()
            known, was_number = entry.state is not None, entry.definition_number
            shown = entry
            if not entry.is_registered:
                del self.entries[entry.name]
                if known:
                    changes.append((entry.name, None, None))
                    dead.append(entry)
                continue
            if entry.needs_successor:
                shown = self.entries[entry.name] = entry.successor()
                dead.append(entry)
            state = shown.snapshot(fallbacks)
            if shown.state is None:  # no caller can have found it yet
                shown.begin(state)
            else:
                stores += shown.stores_of(state)
            number = shown.definition_number  # it is the newest, since it is published now
            if shown is not entry or not known or was_number != number:
                changes.append((shown.name, shown, number))
        for entry in dead:
            # At the same instant as the names: a caller that finds it dead finds its successor.
            stores += entry.stores_of_death()
        return changes, dead

    def _has_moved(self, entry: OperatorEntry) -> bool:
        """Return whether the entry was redefined, and so became the last of several overloads."""
        if entry.definition_number == entry.definitions[0].number:
            return False
        name = entry.name.name
        return len(self.names.read(lambda names: names.overloads.get(name, ()))) > 1

    def find_violations(self) -> list[str]:
        """Recompute every state and return descriptions of the violated invariants."""
        with self.mutex:
            entries = list(self.entries.values())
            wrong = [text for e in entries for text in e.find_violations(self.published_fallbacks)]
            empty = [str(entry.name) for entry in entries if not entry.is_registered]
            wrong += [f"{name} has an entry, and nothing is registered for it" for name in empty]
            if not self.names.read(lambda names: names.agrees_with(entries)):
                wrong.append("the published names are not those of the registered operators")
            newest = {key: h[0].registration for key, h in self.fallbacks.items() if h}
            if newest != self.published_fallbacks.by_key:
                wrong.append("the published fallbacks are not the registered ones")
            rules = {key: h[0].registration for key, h in self.rules.items() if h}
            if rules != self.published_rules:
                wrong.append("the published rules are not the registered ones")
            return wrong

"""The registrations of one operator.

Mirrors ``ATen/core/dispatch/OperatorEntry.h``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from opdispatch.boxing.signature import Signature
from opdispatch.dispatch.attribute_stores import AttributeStore
from opdispatch.dispatch.operator_state import Calls, Fallbacks, OperatorState
from opdispatch.dispatch.registration import RegistrationHandle
from opdispatch.keys.dispatch_key import DispatchKey

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_dump import RegisteredKernel
    from opdispatch.schema.function_schema import FunctionSchema, OperatorName

NO_CALLS: Final = Calls()


if TYPE_CHECKING:  # only type checkers need it

    class EntryOwner(Protocol):
        """The part of a dispatcher that entries, and their handles, need."""

        @property
        def in_transaction(self) -> bool:
            """Whether this thread is within a transaction."""

        def state_of(self, entry: OperatorEntry) -> OperatorState | None:
            """Return the state of an entry that calls from this thread see; None if it is dead."""

        def find_op(self, name: OperatorName) -> Any:
            """Return the handle of that name, or None."""

        def list_kernels(self, name: OperatorName) -> list[RegisteredKernel]:
            """Return the kernels of an operator in the order of their keys, the newest first."""


class OperatorEntry:
    """Registrations of one operator name, newest first.

    Guards      ``definitions`` and ``kernels`` belong to the dispatcher's mutex. ``state`` and
                its memos ``calls``, ``calls_of_states``, ``redispatches`` and
                ``boxed_redispatches`` are published under it, together with those of other
                entries, and read without.
    Invariants  I1  ``definitions`` has at most one element;
                I2  no list in ``kernels`` is empty;
                I3  outside a transaction, ``state`` is the snapshot of the two, and the
                    memos are the state's; a dead entry has none of them;
                I4  the schema of an entry never changes once published: a definition with
                    another schema gets an entry of its own, so code compiled for the old
                    schema can never meet a kernel for the new one.
    """

    __slots__ = (
        "__weakref__",
        "boxed_redispatches",
        "calls",
        "calls_of_states",
        "definition_number",
        "definitions",
        "dispatcher",
        "handle",
        "kernels",
        "name",
        "redispatches",
        "report_error",
        "schema",
        "signature",
        "state",
    )

    def __init__(self, dispatcher: EntryOwner, name: OperatorName) -> None:
        self.dispatcher = dispatcher
        self.name = name
        self.definitions: list[RegistrationHandle] = []
        self.kernels: dict[DispatchKey, list[RegistrationHandle]] = {}
        # The published schema and its signature (I4). They remain after the entry has died, for
        # calls in progress at that time.
        self.schema: FunctionSchema | None = None
        self.signature: Signature | None = None
        self.state: OperatorState | None = None
        # The number of the definition in ``state``; None without one. Guarded by the mutex, too.
        self.definition_number: int | None = None
        self.calls = NO_CALLS
        self.calls_of_states: Mapping[tuple[int, int], Calls] = {}
        self.redispatches = NO_CALLS
        self.boxed_redispatches = NO_CALLS
        self.handle: Any = None  # an OperatorHandle, which is made from an entry
        self.report_error: Callable[[str], None] | None = None

    @property
    def is_registered(self) -> bool:
        """Whether anything is registered for the name."""
        return bool(self.definitions) or any(self.kernels.values())

    @property
    def newest_definition_number(self) -> int | None:
        """The number of its newest definition, published or not; None without one."""
        return self.definitions[0].number if self.definitions else None

    def kernels_for(self, key: DispatchKey) -> list[RegistrationHandle]:
        """Return the list of registrations for ``key``, newest first; create it if missing."""
        return self.kernels.setdefault(key, [])

    def snapshot(self, fallbacks: Fallbacks) -> OperatorState:
        """Return the registrations as callers should see them. The caller holds the mutex."""
        definition = self.definitions[0].registration if self.definitions else None
        schema = definition.schema if definition is not None else None
        signature = None
        if schema is not None:
            known = schema is self.schema or (
                self.schema is not None and _is_same_schema(schema, self.schema)
            )
            signature = self.signature if known else Signature(schema)
        kernels = {}
        for key, handles in self.kernels.items():
            if handles:
                kernels[key] = handles[0].registration
        return OperatorState(definition, signature, kernels, fallbacks)

    def prune(self) -> None:
        """Remove the keys that have no kernels any more (I2)."""
        if not all(self.kernels.values()):
            for key in [key for key, handles in self.kernels.items() if not handles]:
                del self.kernels[key]

    def begin(self, state: OperatorState) -> None:
        """Set ``state`` in an entry that cannot be called yet."""
        for _, name, value in self.stores_of(state):
            setattr(self, name, value)

    def stores_of(self, state: OperatorState) -> tuple[AttributeStore, ...]:
        """Return the stores that make ``state`` visible to callers."""
        self.definition_number = self.definitions[0].number if self.definitions else None
        shown = (
            (self, "state", state),
            (self, "redispatches", state.redispatches),
            (self, "boxed_redispatches", state.boxed_redispatches),
            (self, "calls_of_states", state.calls_of_states),
            (self, "calls", state.calls),
        )
        if self.schema is not None or state.definition is None:
            return shown
        return (
            *shown,
            (self, "schema", state.definition.schema),
            (self, "signature", state.signature),
            (self, "handle", None),  # it was made when there was no schema to compile for
        )

    def stores_of_death(self) -> tuple[AttributeStore, ...]:
        """Return the stores that make the entry's death visible to callers.

        ``forget_handle`` follows.
        """
        self.definition_number = None
        return (
            (self, "state", None),
            (self, "redispatches", NO_CALLS),
            (self, "boxed_redispatches", NO_CALLS),
            (self, "calls_of_states", {}),
            (self, "calls", NO_CALLS),
        )

    def forget_handle(self) -> None:
        """Drop the reference to a dead entry's handle, which callers may still hold.

        Otherwise the two would form a cycle that only the garbage collector frees.
        """
        handle, self.handle = self.handle, None
        if handle is not None:
            handle.forget_schema()

    @property
    def needs_successor(self) -> bool:
        """Whether its definition has another schema than the published one (I4)."""
        if self.schema is None or not self.definitions:
            return False
        schema = self.definitions[0].registration.schema
        return schema is not self.schema and not _is_same_schema(schema, self.schema)

    def successor(self) -> OperatorEntry:
        """Return an entry with the same registrations for a new schema; this one loses them."""
        entry = OperatorEntry(self.dispatcher, self.name)
        entry.definitions, entry.kernels = self.definitions, self.kernels
        entry.report_error = self.report_error
        self.definitions, self.kernels = [], {}
        return entry

    def find_violations(self, fallbacks: Fallbacks) -> list[str]:
        """Return descriptions of the violated invariants. The caller holds the mutex."""
        wrong = []
        if len(self.definitions) > 1:
            wrong.append(f"it has {len(self.definitions)} definitions")
        wrong += [
            f"it has an empty list of kernels for {k}" for k, v in self.kernels.items() if not v
        ]
        handles = [*self.definitions, *(h for kernels in self.kernels.values() for h in kernels)]
        dead = [handle for handle in handles if not handle.live]
        wrong += [f"it holds {handle}" for handle in dead]
        if self.state is None:
            return [f"{self.name}: {text}" for text in [*wrong, "it is not published"]]
        expected = self.snapshot(fallbacks)
        if self.state.kernels != expected.kernels:
            wrong.append("its published kernels are not the registered ones")
        if self.state.definition is not expected.definition:
            wrong.append("its published definition is not the registered one")
        if self.state.fallbacks is not fallbacks:
            wrong.append("its published fallbacks are not the registered ones")
        state = self.state
        names = ("calls", "calls_of_states", "redispatches", "boxed_redispatches")
        memos = [getattr(self, name) for name in names]
        theirs = [getattr(state, name) for name in names]
        if any(mine is not its for mine, its in zip(memos, theirs, strict=True)):
            wrong.append("its compiled callers look at another state")
        wrong += self.state.find_violations()
        return [f"{self.name}: {text}" for text in wrong]


def _is_same_schema(one: FunctionSchema | None, other: FunctionSchema | None) -> bool:
    # Equal schemas may still differ: a default of 1 equals True and 1.0.
    return one is other or (one == other and str(one) == str(other))

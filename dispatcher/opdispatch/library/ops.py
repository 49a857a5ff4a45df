"""``ops.namespace.name(...)``: operators by attribute, as ``torch.ops`` has them.

Note [What attributes remember]
    Namespaces keep their packets as attributes, and packets the overloads that they were asked for.
    A packet keeps, too, its only overload, or, of several, the one that is chosen for arguments of
    some types whatever their values are: none that is tried before it could take them, and it takes
    them all, or nothing after it could. So a call by name costs little more than a call of a
    handle. A packet that a namespace makes for an operator with one overload has its call compiled
    for that overload's schema; for one with several, for the overload that is tried first, if types
    can say that it takes the arguments. Both forget as soon as an overload of that name comes or
    goes: ``Ops`` listens to the dispatcher, is called with the registration mutex held, and what
    is kept is looked up with the mutex held. So nothing that is kept can be older than the last
    change. A compiled packet that has forgotten does not learn again, since the next overload may
    have another schema: it goes on without compiled code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Self
from weakref import WeakValueDictionary

from opdispatch.dispatch.argument_source import MISSING
from opdispatch.dispatch.compiled_call import packet_class_for
from opdispatch.dispatch.dispatcher import Dispatcher
from opdispatch.dispatch.operator_handle import OperatorHandle
from opdispatch.errors import OperatorNotFoundError
from opdispatch.library.overload_types import any_could_be_number, takes_always, takes_never
from opdispatch.schema.function_schema import OperatorName


class OpOverloadPacket:
    """All overloads of one operator name; calling it picks the one that takes the arguments."""

    def __init__(self, dispatcher: Dispatcher, name: str) -> None:
        self._dispatcher = dispatcher
        self._name = name
        self._single: OperatorHandle | None = None  # the only overload, once it was looked up
        self._only: OperatorHandle | None = None  # the one that the packet is compiled for
        # What is called for types of arguments, whatever values of these types are given: the
        # types, then the names of those that are given by name, and their types.
        self._by_types: dict[tuple[type | str, ...], Callable[..., Any]] = {}
        self._kept: set[str] = set()  # the overloads that are attributes

    def __eq__(self, other: object) -> bool:
        """Return whether both are of the same operators, even if an overload came or went in
        between.
        """
        if not isinstance(other, OpOverloadPacket):
            return NotImplemented
        return self._dispatcher is other._dispatcher and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __call__(self, x: Any = MISSING, y: Any = MISSING, /, *others: Any, **kwargs: Any) -> Any:
        """Call the overload that takes the arguments. Raises as ``OperatorHandle`` does."""
        if not kwargs:  # as most calls of packets with several overloads
            if y is MISSING:
                if (call := self._by_types.get((type(x),))) is not None:
                    return call(x)
            elif not others:
                if (call := self._by_types.get((type(x), type(y)))) is not None:
                    return call(x, y)
            elif call := self._by_types.get((type(x), type(y), *map(type, others))):
                return call(x, y, *others)
        args = (x, y, *others) if y is not MISSING else () if x is MISSING else (x,)
        if kwargs and (call := self._by_types.get(_types_of(args, kwargs))) is not None:
            return call(*args, **kwargs)
        return self._interpret_call(args, kwargs)

    def _call_any(
        self, parameters: Sequence[Any], others: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        """Choose and call an overload, for a packet compiled for one of several."""
        args = [value for value in parameters if value is not MISSING]
        named = {name: value for name, value in kwargs.items() if value is not MISSING}
        return OpOverloadPacket.__call__(self, *args, *others, **named)

    def _interpret_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the operator in readable steps.

        Compiled packets do so whenever they are in doubt.
        """
        single = self._single
        if single is not None:
            return single(*args, **kwargs)
        return self._choose(args, kwargs)(*args, **kwargs)

    def _choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OperatorHandle:
        dispatcher = self._dispatcher
        if not dispatcher.in_transaction:  # what only this thread sees must not be kept
            with dispatcher.hold_publications():
                names = dispatcher.overloads(self._name)
                if len(names) == 1:
                    self._single = dispatcher.find_schema(names[0])
                elif args or kwargs:
                    return self._choose_by_types(names, args, kwargs)
        return dispatcher.resolve_overload(self._name, args, kwargs)

    def _choose_by_types(
        self, names: Sequence[OperatorName], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> OperatorHandle:
        """Return the overload for these arguments; cached if it is the one for all of their types.

        The caller holds publications.
        """
        handle = self._dispatcher.resolve_overload(self._name, args, kwargs)
        handles = [h for name in names if (h := self._dispatcher.find_schema(name)) is not None]
        handles.sort(key=lambda each: bool(each.name.overload_name))  # as they are tried
        place = handles.index(handle)
        others = handles[:place]
        if not takes_always(handle.schema, args, kwargs):
            others += handles[place + 1 :]

        def are_out(of_numbers: bool) -> bool:
            return all(takes_never(h.schema, args, kwargs, of_numbers=of_numbers) for h in others)

        if are_out(of_numbers=True):
            # Its method: a call of an object takes longer.
            self._by_types[_types_of(args, kwargs)] = handle.__call__
        elif are_out(of_numbers=False) and not _could_be_number(args, kwargs):
            self._by_types[_types_of(args, kwargs)] = self._call_unless_numbers(handle)
        return handle

    def _call_unless_numbers(self, handle: OperatorHandle) -> Callable[..., Any]:
        """Return a function that calls the chosen overload unless an array counts as a number."""
        call, resolve, name = handle.__call__, self._dispatcher.resolve_overload, self._name

        def call_or_resolve(*args: Any, **kwargs: Any) -> Any:
            if any_could_be_number(args) or (kwargs and any_could_be_number(kwargs.values())):
                return resolve(name, args, kwargs)(*args, **kwargs)
            return call(*args, **kwargs)

        return call_or_resolve

    def _forget(self) -> None:
        """Look its overloads up again at the next call."""
        self._single = self._only = None
        self._by_types = {}
        while self._kept:
            delattr(self, self._kept.pop())
        self.__class__ = OpOverloadPacket  # what was compiled has another schema's parameters

    def overloads(self) -> list[str]:
        """Return the names of its overloads; ``"default"`` for the one without a name."""
        names = self._dispatcher.overloads(self._name)
        return [name.overload_name or "default" for name in names]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of its overloads."""
        return iter(self.overloads())

    @property
    def __name__(self) -> str:
        """The name without its namespace."""
        return self._name.partition("::")[2]

    @property
    def _qualified_op_name(self) -> str:
        """``"namespace::name"``, by PyTorch's name for it."""
        return self._name

    @property
    def op(self) -> Self:
        """The packet itself."""
        return self

    def __copy__(self) -> Self:
        """Return itself: packets know their operator by name, and have no state of their own."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __str__(self) -> str:
        return self._name.replace("::", ".")

    def __getattr__(self, overload: str) -> OperatorHandle:
        if overload.startswith("__"):
            raise AttributeError(overload)
        dispatcher = self._dispatcher
        name = OperatorName(self._name, "" if overload == "default" else overload)
        if dispatcher.in_transaction:  # what only this thread sees must not be kept
            handle = dispatcher.find_schema(name)
        else:
            with dispatcher.hold_publications():
                if (handle := dispatcher.find_schema(name)) is not None:
                    setattr(self, overload, handle)
                    self._kept.add(overload)
        if handle is None:
            raise OperatorNotFoundError(
                f"operator {self._name} has no overload {overload!r}",
                hint=f"it has {', '.join(self.overloads()) or 'none'}",
                operator=str(name),
            )
        return handle

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *self.overloads()]

    def __repr__(self) -> str:
        return f"<OpOverloadPacket {self._name}>"


def _first(names: Sequence[OperatorName]) -> OperatorName:
    """Return the overload that is tried before all others."""
    return next((name for name in names if not name.overload_name), names[0])


def _could_be_number(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any_could_be_number(args) or bool(kwargs and any_could_be_number(kwargs.values()))


def _types_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[type | str, ...]:
    """Return the types by which a call's overload is cached."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values()))


def _make_packet(dispatcher: Dispatcher, name: str) -> OpOverloadPacket:
    """Return a packet, compiled if it can be. The caller holds the mutex."""
    names = dispatcher.overloads(name)
    handle = dispatcher.find_schema(_first(names))
    is_only = len(names) == 1
    if handle is None:
        return OpOverloadPacket(dispatcher, name)
    made = packet_class_for(OpOverloadPacket, handle.schema, is_only_overload=is_only)
    packet = made(dispatcher, name)
    packet._only = handle
    if is_only:
        packet._single = handle
    return packet


class OpNamespace:
    """The operators of one namespace, as attributes."""

    def __init__(self, dispatcher: Dispatcher, namespace: str) -> None:
        self._dispatcher = dispatcher
        self._namespace = namespace
        # Also those that are not attributes any more: a held one may go on being called.
        # By their ids, since those of one name are equal.
        self._packets: defaultdict[str, WeakValueDictionary[int, OpOverloadPacket]] = defaultdict(
            WeakValueDictionary
        )

    def __getattr__(self, name: str) -> OpOverloadPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        dispatcher = self._dispatcher
        qualified = f"{self._namespace}::{name}"
        if dispatcher.in_transaction:  # what only this thread sees must not be kept
            if not dispatcher.overloads(qualified):
                raise dispatcher.not_found(qualified)
            packet = OpOverloadPacket(dispatcher, qualified)
            self._packets[name][id(packet)] = packet
            return packet
        with dispatcher.hold_publications():
            if not dispatcher.overloads(qualified):
                raise dispatcher.not_found(qualified)
            packet = _make_packet(dispatcher, qualified)
            self._packets[name][id(packet)] = packet
            kept: OpOverloadPacket = self.__dict__.setdefault(name, packet)
        return kept

    def _forget(self, name: str) -> None:
        """Look the packet of that name up again when it is next asked for."""
        self.__dict__.pop(name, None)
        if (packets := self._packets.get(name)) is not None:
            for packet in packets.values():
                packet._forget()

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of the operators that are defined in it."""
        return iter(dir(self))

    def __dir__(self) -> list[str]:
        dispatcher = self._dispatcher
        known = {name for name in dispatcher.operators() if name.namespace == self._namespace}
        return sorted(
            {name.unqualified_name for name in known if dispatcher.find_schema(name) is not None}
        )

    def __copy__(self) -> Self:
        """Return itself: there is one object of a name."""
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __repr__(self) -> str:
        return f"<OpNamespace {self._namespace}>"


class Ops:
    """The operators of a dispatcher: ``ops.namespace.name`` or ``ops.namespace.name.overload``."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._dispatcher = dispatcher
        dispatcher.packet_of = self._packet_of
        dispatcher.add_registration_listener(self)

    def __getattr__(self, namespace: str) -> OpNamespace:
        if namespace.startswith("__"):
            raise AttributeError(namespace)
        made = OpNamespace(self._dispatcher, namespace)
        kept: OpNamespace = self.__dict__.setdefault(namespace, made)
        return kept

    def on_operator_registered(self, name: OperatorName) -> None:
        """See Note [What attributes remember]."""
        namespace = self.__dict__.get(name.namespace)
        if namespace is not None:
            namespace._forget(name.unqualified_name)

    on_operator_deregistered = on_operator_registered

    def __dir__(self) -> list[str]:
        return sorted({name.namespace for name in self._dispatcher.operators()})

    def _packet_of(self, name: OperatorName) -> OpOverloadPacket:
        packet: OpOverloadPacket = getattr(getattr(self, name.namespace), name.unqualified_name)
        return packet

    def __repr__(self) -> str:
        return "<opdispatch.ops>"

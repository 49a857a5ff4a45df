"""``ops.namespace.name(...)``: operators as attributes, like ``torch.ops``.

Note [What attributes remember]
    Namespaces cache their packets as attributes, and packets the overloads that were accessed. A
    packet also caches its only overload or, of several, the one that is selected for arguments of
    certain types regardless of their values: no overload tried before it could accept them, and
    either it accepts all of them or no later overload could. So a call by name costs little more
    than a call of a handle. The call of a packet is compiled for the schema of its only overload
    or, with several, of the overload that is tried first, if types can determine whether it accepts
    the arguments. Namespaces and packets clear their caches as soon as an overload of that name is
    defined or removed: ``Ops`` listens to the dispatcher and is called with the registration mutex
    held, and caches are filled with the mutex held. So cached entries are never older than the last
    change. A compiled packet that was cleared does not fill its cache again, since the next
    overload may have another schema: it continues without compiled code.
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
    """All overloads of one operator name; calling it selects the one that accepts the arguments."""

    __slots__ = ("__dict__", "__weakref__", "_call", "_clear")  # for ``packet_class_for``

    def __init__(self, dispatcher: Dispatcher, name: str) -> None:
        self._dispatcher = dispatcher
        self._name = name
        self._single: OperatorHandle | None = None  # the only overload, once it was looked up
        # The function to call by types of arguments, whatever their values: the key has the types,
        # then the names of keyword arguments and their types.
        self._by_types: dict[tuple[type | str, ...], Callable[..., Any]] = {}
        self._kept: set[str] = set()  # the overloads that are attributes

    def __eq__(self, other: object) -> bool:
        """Return whether both have the same operators, even if overloads changed in between."""
        if not isinstance(other, OpOverloadPacket):
            return NotImplemented
        return self._dispatcher is other._dispatcher and self._name == other._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __call__(self, x: Any = MISSING, y: Any = MISSING, /, *others: Any, **kwargs: Any) -> Any:
        """Call the overload that accepts the arguments. Raises the errors of ``OperatorHandle``."""
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
        """Select and call an overload, for a packet compiled for one of several."""
        args = [value for value in parameters if value is not MISSING]
        named = {name: value for name, value in kwargs.items() if value is not MISSING}
        return OpOverloadPacket.__call__(self, *args, *others, **named)

    def _interpret_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Call the operator in readable steps, as compiled packets do in every unusual case."""
        single = self._single
        if single is not None:
            return single(*args, **kwargs)
        return self._choose(args, kwargs)(*args, **kwargs)

    def _choose(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> OperatorHandle:
        dispatcher = self._dispatcher
        if not dispatcher.in_transaction:  # state that only this thread sees must not be cached
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
        """Return the overload for these arguments; cached if their types determine it.

        The caller holds publications.
        """
        handle = self._dispatcher.resolve_overload(self._name, args, kwargs)
        handles = [h for name in names if (h := self._dispatcher.find_schema(name)) is not None]
        # in the order in which they are tried
        handles.sort(key=lambda each: bool(each.name.overload_name))
        place = handles.index(handle)
        others = handles[:place]
        if not takes_always(handle.schema, args, kwargs):
            others += handles[place + 1 :]

        def are_out(of_numbers: bool) -> bool:
            return all(takes_never(h.schema, args, kwargs, of_numbers=of_numbers) for h in others)

        if are_out(of_numbers=True):
            # Its method, because calling an object takes longer.
            self._by_types[_types_of(args, kwargs)] = handle.__call__
        elif are_out(of_numbers=False) and not _could_be_number(args, kwargs):
            self._by_types[_types_of(args, kwargs)] = self._call_unless_numbers(handle)
        return handle

    def _call_unless_numbers(self, handle: OperatorHandle) -> Callable[..., Any]:
        """Return a function that calls the given overload unless an array counts as a number."""
        call, resolve, name = handle.__call__, self._dispatcher.resolve_overload, self._name

        def call_or_resolve(*args: Any, **kwargs: Any) -> Any:
            if any_could_be_number(args) or (kwargs and any_could_be_number(kwargs.values())):
                return resolve(name, args, kwargs)(*args, **kwargs)
            return call(*args, **kwargs)

        return call_or_resolve

    def _bind(self, handle: OperatorHandle) -> None:
        """Compile calls for an overload: subclasses by ``packet_class_for`` do."""

    def _forget(self) -> None:
        """Clear the cache; overloads are looked up again at the next call."""
        self._single = None
        self._by_types = {}
        while self._kept:
            delattr(self, self._kept.pop())
        if type(self) is not OpOverloadPacket:
            self._clear()
            self.__class__ = OpOverloadPacket  # compiled code has the parameters of another schema
            del self._call, self._clear  # which refer to the packet

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
        """``"namespace::name"``, under PyTorch's attribute name."""
        return self._name

    @property
    def op(self) -> Self:
        """The packet itself."""
        return self

    def __copy__(self) -> Self:
        """Return itself: packets refer to their operator by name, and have no other state."""
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
        if dispatcher.in_transaction:  # state that only this thread sees must not be cached
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
    """Return the overload that is tried first."""
    return next((name for name in names if not name.overload_name), names[0])


def _could_be_number(args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    return any_could_be_number(args) or bool(kwargs and any_could_be_number(kwargs.values()))


def _types_of(args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[type | str, ...]:
    """Return the types by which a call's overload is cached."""
    return (*map(type, args), *kwargs, *map(type, kwargs.values()))


def _make_packet(dispatcher: Dispatcher, name: str) -> OpOverloadPacket:
    """Return a packet, compiled if possible. The caller holds the mutex."""
    names = dispatcher.overloads(name)
    handle = dispatcher.find_schema(_first(names))
    is_only = len(names) == 1
    if handle is None:
        return OpOverloadPacket(dispatcher, name)
    made = packet_class_for(OpOverloadPacket, handle.schema, is_only_overload=is_only)
    packet = made(dispatcher, name)
    packet._bind(handle)
    if is_only:
        packet._single = handle
    return packet


class OpNamespace:
    """The operators of one namespace, as attributes."""

    def __init__(self, dispatcher: Dispatcher, namespace: str) -> None:
        self._dispatcher = dispatcher
        self._namespace = namespace
        # Including packets that are no longer attributes: callers that hold one may still call it.
        # Keyed by id, since packets of one name are equal.
        self._packets: defaultdict[str, WeakValueDictionary[int, OpOverloadPacket]] = defaultdict(
            WeakValueDictionary
        )

    def __getattr__(self, name: str) -> OpOverloadPacket:
        if name.startswith("__"):
            raise AttributeError(name)
        dispatcher = self._dispatcher
        qualified = f"{self._namespace}::{name}"
        if dispatcher.in_transaction:  # state that only this thread sees must not be cached
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
        """Remove the packet of that name; it is looked up again at the next access."""
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
        """Return itself: each namespace has a single object."""
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

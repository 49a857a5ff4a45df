"""``session.ops.namespace.name.overload``: remote operators with the syntax of local ones.

The blocking and the asyncio session share these classes; a call returns what the session's own
``call`` returns, the result or a coroutine. Names are not looked up before the call, unless the
session already knows the daemon's names: see ``operator_catalog``. ``help``, ``inspect.signature``
and ``dir`` query the daemon; in an event loop, which must not block, in the background: see
``aio.operator_catalog``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, NoReturn, Protocol, TypeVar

from opdispatch.errors import ArgumentError
from opdispatch_client.listings import OperatorDescription
from opdispatch_client.operator_catalog import (
    OperatorCatalog,
    annotations_of,
    documentation_of,
    signature_of,
)
from opdispatch_wire.caller_tensors import OnTransfer

Result = TypeVar("Result", covariant=True)

ListNames = Callable[[], list[str]]
"""Lists the names of all operators; used for completion in an interactive interpreter."""


class Caller(Protocol[Result]):
    """The ``call`` method of a session."""

    def __call__(self, operator: str, /, *args: Any, **kwargs: Any) -> Result:
        """Call the operator of that name."""


class WithOptions(Protocol[Result]):
    """The ``with_options`` method of a session, applied to the options of some ``Calls``."""

    def __call__(
        self,
        *,
        retry: bool | None = None,
        remote: bool | None = None,
        timeout: float | None = None,
        on_progress: OnTransfer | None = None,
    ) -> Calls[Result]:
        """Return ``call`` and ``ops`` with those options changed that are not None."""


class Calls(Generic[Result]):
    """``call``, ``trace`` and ``ops`` of a session, with options that differ from its own."""

    __slots__ = ("_catalog", "call", "trace", "with_options")

    def __init__(
        self,
        call: Caller[Result],
        catalog: OperatorCatalog | None = None,
        with_options: WithOptions[Result] | None = None,
        trace: Callable[..., Any] | None = None,
    ) -> None:
        self.call = call
        self.trace = trace or _no_trace
        self.with_options: WithOptions[Result] = with_options or _no_options
        self._catalog = catalog

    @property
    def ops(self) -> RemoteOps[Result]:
        """The daemon's operators: ``calls.ops.namespace.name(...)``."""
        names = self._catalog.names if self._catalog is not None else None
        return RemoteOps(self.call, names, self._catalog, self.with_options)


class RemoteOps(Generic[Result]):
    """``session.ops``: its attributes are namespaces."""

    __slots__ = ("__source",)

    def __init__(
        self,
        call: Caller[Result],
        names: ListNames | None = None,
        catalog: OperatorCatalog | None = None,
        with_options: WithOptions[Result] | None = None,
    ) -> None:
        self.__source = _Source(call, names, catalog, with_options or _no_options)

    def __getattr__(self, namespace: str) -> RemoteNamespace[Result]:
        _refuse_special(self, namespace)
        self.__source.check(namespace)
        return RemoteNamespace(self.__source, namespace)

    def __dir__(self) -> list[str]:
        return sorted({name.partition("::")[0] for name in self.__source.list_names()})

    def __repr__(self) -> str:
        return "<RemoteOps>"


class RemoteNamespace(Generic[Result]):
    """``session.ops.namespace``: its attributes are operators."""

    __slots__ = ("__namespace", "__source")

    def __init__(self, source: _Source[Result], namespace: str) -> None:
        self.__source = source
        self.__namespace = namespace

    def __getattr__(self, name: str) -> RemoteOperator[Result]:
        _refuse_special(self, name)
        qualified = f"{self.__namespace}::{name}"
        self.__source.check(qualified)
        return RemoteOperator(self.__source, qualified)

    def __dir__(self) -> list[str]:
        prefix = f"{self.__namespace}::"
        names = self.__source.list_names()
        return sorted(
            {n.removeprefix(prefix).partition(".")[0] for n in names if n.startswith(prefix)}
        )

    def __repr__(self) -> str:
        return f"<RemoteNamespace {self.__namespace}>"


class RemoteOperator(Generic[Result]):
    """``session.ops.namespace.name``: call it, or access one of its overloads as an attribute.

    Without an overload name the daemon chooses the overload by the arguments. ``default`` is the
    overload without a name, as in PyTorch. ``help(operator)`` shows the schemas and the
    documentation, and ``inspect.signature`` the arguments of an only overload. In a running event
    loop they show what ``await session.describe(name)`` or an earlier access has returned.
    """

    __slots__ = ("__described", "__name", "__source")

    def __init__(self, source: _Source[Result], name: str) -> None:
        self.__source = source
        self.__name = name
        self.__described: list[OperatorDescription] | None = None

    # Both are positional-only, because operators may have arguments of any name, including `self`.
    def __call__(self, /, *args: Any, **kwargs: Any) -> Result:
        """Call the operator; raise what the session's ``call`` raises."""
        return self.__source.call(self.__name, *args, **kwargs)

    def with_options(
        self,
        *,
        retry: bool | None = None,
        remote: bool | None = None,
        timeout: float | None = None,
        on_progress: OnTransfer | None = None,
    ) -> RemoteOperator[Result]:
        """Return the same operator with other options: see ``Session.with_options``.

        Options that are None stay unchanged. (An overload with the name of this method can be
        called by ``session.call``.)
        """
        options = self.__source.with_options
        calls = options(retry=retry, remote=remote, timeout=timeout, on_progress=on_progress)
        source = self.__source
        return RemoteOperator(
            _Source(calls.call, source.names, source.catalog, calls.with_options), self.__name
        )

    def __getattr__(self, overload: str) -> Any:
        if overload in _DESCRIBED:
            return self.__describe(overload)
        if overload == "__name__":
            return self.__name.partition("::")[2]
        if overload == "__qualname__":
            return self.__name
        _refuse_special(self, overload)
        if "." in self.__name:
            raise AttributeError(f"{self.__name} names an overload already; {overload!r} is none")
        name = self.__name if overload == "default" else f"{self.__name}.{overload}"
        if overload != "default":
            self.__source.check(name)
        return RemoteOperator(self.__source, name)

    def __dir__(self) -> list[str]:
        prefix = f"{self.__name}."
        names = self.__source.list_names()
        return sorted({n.removeprefix(prefix) for n in names if n.startswith(prefix)})

    def __repr__(self) -> str:
        return f"<RemoteOperator {self.__name}>"

    def __describe(self, attribute: str) -> Any:
        if not self.__described:  # once, since ``help`` asks several times
            catalog = self.__source.catalog
            self.__described = catalog.describe(self.__name) if catalog is not None else []
        found = _DESCRIBED[attribute](self.__described)
        if found is None:
            _refuse_special(self, attribute)
        return found


class _Source(Generic[Result]):
    """The base of the attributes of one ``ops``."""

    __slots__ = ("call", "catalog", "names", "with_options")

    def __init__(
        self,
        call: Caller[Result],
        names: ListNames | None,
        catalog: OperatorCatalog | None,
        with_options: WithOptions[Result],
    ) -> None:
        self.call = call
        self.names = names
        self.catalog = catalog
        self.with_options = with_options

    def check(self, name: str) -> None:
        """Raise OperatorNotFoundError for a name that is known not to exist."""
        # Interactive shells probe for special methods, whose names begin with an underscore.
        if self.catalog is not None and "::_" not in name and not name.startswith("_"):
            self.catalog.check(name)

    def list_names(self) -> list[str]:
        return self.names() if self.names is not None else []


class _Documentation:
    """A descriptor for ``__doc__``: the daemon's text for an operator, else the class's own."""

    def __get__(self, operator: Any, owner: type) -> Any:
        found = operator.__getattr__("__doc__") if operator is not None else ""
        return found or _CLASS_DOCUMENTATION


class _Annotations(dict[str, Any]):
    """A descriptor for ``__annotations__``: the daemon's for an operator, none for the class.

    Without it, Python would create a dict in the class on first access, such as by a documentation
    tool, and operators would inherit that.
    """

    def __get__(self, operator: Any, owner: type) -> dict[str, Any]:
        return operator.__getattr__("__annotations__") if operator is not None else self


_DESCRIBED: Final[dict[str, Callable[[list[OperatorDescription]], Any]]] = {
    "__doc__": documentation_of,
    "__signature__": signature_of,
    "__annotations__": annotations_of,
}
_CLASS_DOCUMENTATION: Final = RemoteOperator.__doc__
RemoteOperator.__doc__ = _Documentation()  # type: ignore[assignment]
RemoteOperator.__annotations__ = _Annotations()


def _no_options(**options: object) -> NoReturn:
    given = ", ".join(name for name, value in options.items() if value is not None)
    raise ArgumentError(
        f"calls that are recorded have no options of their own; got {given}",
        hint="give them to the whole program",
    )


def _no_trace(operator: str, /, *args: object, **kwargs: object) -> NoReturn:
    raise ArgumentError(f"{operator} cannot be traced while it is recorded")


def _refuse_special(owner: object, name: str) -> None:
    """Raise AttributeError for names of Python's protocols, which must not become operators."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")

"""``session.ops.namespace.name.overload``: remote operators, spelled like local ones.

Nothing is looked up before the call: a name that does not exist fails when it is called. The
blocking and the asyncio session share these classes; a call returns what the session's own
``call`` returns, the result or a coroutine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, Protocol, TypeVar

Result = TypeVar("Result", covariant=True)

ListNames = Callable[[], list[str]]
"""Lists the names of all operators; used for completion in an interactive interpreter."""


class Caller(Protocol[Result]):
    """The ``call`` method of a session."""

    def __call__(self, operator: str, /, *args: Any, **kwargs: Any) -> Result:
        """Calls the operator of that name."""


class Calls(Generic[Result]):
    """``call`` and ``ops`` of a session, with another choice than the session's."""

    __slots__ = ("_names", "call")

    def __init__(self, call: Caller[Result], names: ListNames | None = None) -> None:
        self.call = call
        self._names = names

    @property
    def ops(self) -> RemoteOps[Result]:
        """The daemon's operators: ``calls.ops.namespace.name(...)``."""
        return RemoteOps(self.call, self._names)


class RemoteOps(Generic[Result]):
    """``session.ops``: its attributes are namespaces."""

    __slots__ = ("__call", "__names")

    def __init__(self, call: Caller[Result], names: ListNames | None = None) -> None:
        self.__call = call
        self.__names = names

    def __getattr__(self, namespace: str) -> RemoteNamespace[Result]:
        _refuse_special(self, namespace)
        return RemoteNamespace(self.__call, namespace, self.__names)

    def __dir__(self) -> list[str]:
        return sorted({name.partition("::")[0] for name in _list_names(self.__names)})

    def __repr__(self) -> str:
        return "<RemoteOps>"


class RemoteNamespace(Generic[Result]):
    """``session.ops.namespace``: its attributes are operators."""

    __slots__ = ("__call", "__names", "__namespace")

    def __init__(self, call: Caller[Result], namespace: str, names: ListNames | None) -> None:
        self.__call = call
        self.__namespace = namespace
        self.__names = names

    def __getattr__(self, name: str) -> RemoteOperator[Result]:
        _refuse_special(self, name)
        return RemoteOperator(self.__call, f"{self.__namespace}::{name}", self.__names)

    def __dir__(self) -> list[str]:
        prefix = f"{self.__namespace}::"
        names = _list_names(self.__names)
        return sorted(
            {n.removeprefix(prefix).partition(".")[0] for n in names if n.startswith(prefix)}
        )

    def __repr__(self) -> str:
        return f"<RemoteNamespace {self.__namespace}>"


class RemoteOperator(Generic[Result]):
    """``session.ops.namespace.name``: call it, or name an overload of it.

    Without an overload name the daemon chooses the overload by the arguments. ``default``
    stands for the overload without a name, as in PyTorch.
    """

    __slots__ = ("__call", "__name", "__names")

    def __init__(self, call: Caller[Result], name: str, names: ListNames | None) -> None:
        self.__call = call
        self.__name = name
        self.__names = names

    # Both are positional only: an operator may have arguments of any name, `self` included.
    def __call__(self, /, *args: Any, **kwargs: Any) -> Result:
        """Calls the operator; raises what the session's ``call`` raises."""
        return self.__call(self.__name, *args, **kwargs)

    def __getattr__(self, overload: str) -> RemoteOperator[Result]:
        _refuse_special(self, overload)
        if "." in self.__name:
            raise AttributeError(f"{self.__name} names an overload already; {overload!r} is none")
        name = self.__name if overload == "default" else f"{self.__name}.{overload}"
        return RemoteOperator(self.__call, name, self.__names)

    def __dir__(self) -> list[str]:
        prefix = f"{self.__name}."
        names = _list_names(self.__names)
        return sorted({n.removeprefix(prefix) for n in names if n.startswith(prefix)})

    def __repr__(self) -> str:
        return f"<RemoteOperator {self.__name}>"


def _refuse_special(owner: object, name: str) -> None:
    """Python's own protocols ask for such names; they must not become operators."""
    if name.startswith("__") and name.endswith("__"):
        raise AttributeError(f"{type(owner).__name__!r} object has no attribute {name!r}")


def _list_names(names: ListNames | None) -> list[str]:
    return names() if names is not None else []

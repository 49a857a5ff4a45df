"""KernelErrors with the built-in classes of the kernel's exception, such as ValueError.

Only names of a fixed table cross the wire, in the fact ``exception_bases``, and with them numbers
and texts, such as the ``errno`` of an OSError. So a library cannot choose a class of its own
making, and nothing is unpickled.
"""

from __future__ import annotations

import builtins
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

from opdispatch_wire.errors import KernelError

BASES_FACT: Final = "exception_bases"

# A KernelError of these classes would have their effect: end a loop or a generator, or the process.
# Groups are excluded because ``except*`` splits them, and they need exceptions.
_NEVER: Final = (StopIteration, StopAsyncIteration, BaseExceptionGroup)

_BUILT_IN: Final[dict[str, type[Exception]]] = {
    found.__name__: found
    for found in vars(builtins).values()
    if isinstance(found, type)
    and issubclass(found, Exception)
    and not issubclass(found, _NEVER)
    and not issubclass(KernelError, found)
}

# Attributes that programs read of caught exceptions. A NameError's name is left out, since Python
# would look for similar names in the frames of the client.
_ATTRIBUTES: Final[dict[type[Exception], tuple[str, ...]]] = {
    OSError: ("errno", "strerror", "filename", "filename2"),
    ImportError: ("name", "path"),
    SyntaxError: ("filename", "lineno"),
    UnicodeDecodeError: ("encoding", "reason", "start", "end"),
    UnicodeEncodeError: ("encoding", "reason", "start", "end"),
    UnicodeTranslateError: ("reason", "start", "end"),
}
_NUMBERS: Final = frozenset({"errno", "lineno", "start", "end"})
_MOST_BASES, _MOST_DIGITS = 8, 18


def facts_of_exception(error: BaseException) -> dict[str, str]:
    """Return the facts for ``kernel_error`` to make an error with the same built-in classes."""
    bases = _built_in_bases(error)
    if not bases:
        return {}
    facts = {BASES_FACT: ",".join(base.__name__ for base in bases)}
    for name in _attribute_names(bases):
        value = None
        with suppress(Exception):  # attributes of a library's class may raise anything
            value = getattr(error, name, None)
        if type(value) is (int if name in _NUMBERS else str):
            facts[f"exception_{name}"] = str(value)
    return facts


def kernel_error(message: str, *, hint: str = "", facts: Mapping[str, str]) -> KernelError:
    """Return a KernelError that is an instance of the built-in classes of the kernel's exception.

    Names of other than built-in exceptions are ignored.
    """
    names = tuple(facts.get(BASES_FACT, "").split(",", _MOST_BASES)[:_MOST_BASES])
    error = _class_of(names)(message, hint=hint)
    error.facts.update(facts)  # a peer may have named one "message"
    _set_attributes(error, facts)
    return error


def _built_in_bases(error: BaseException) -> list[type[Exception]]:
    """Return its most derived built-in classes, in order."""
    found: list[type[Exception]] = []
    for base in type(error).__mro__:
        known = _BUILT_IN.get(base.__name__)
        if known is base and not any(issubclass(other, base) for other in found):
            found.append(known)
    return found


@lru_cache(maxsize=256)
def _class_of(names: tuple[str, ...]) -> type[KernelError]:
    bases = [_BUILT_IN[name] for name in dict.fromkeys(names) if name in _BUILT_IN]
    if not bases:
        return KernelError
    called = ", ".join(base.__name__ for base in bases)
    if [base.__name__ for base in bases] != list(names):
        return _class_of(tuple(base.__name__ for base in bases))
    members = {
        "__doc__": f"A kernel raised {called} in its interpreter: see KernelError.",
        "__module__": KernelError.__module__,
        "__qualname__": f"KernelError[{called}]",  # as in tracebacks
        "__reduce__": _reduce,
    }
    try:
        return type(KernelError.__name__, (KernelError, *bases), members)
    except TypeError:  # no exception can have both classes: a peer has made that up
        return KernelError


def _reduce(error: KernelError) -> tuple[Any, ...]:
    return _restored, (error.message, error.hint, error.facts), error.__dict__


def _restored(message: str, hint: str, facts: dict[str, str]) -> KernelError:
    return kernel_error(message, hint=hint, facts=facts)


def _attribute_names(bases: list[type[Exception]]) -> list[str]:
    return [
        name
        for base, names in _ATTRIBUTES.items()
        if any(issubclass(each, base) for each in bases)
        for name in names
    ]


def _set_attributes(error: KernelError, facts: Mapping[str, str]) -> None:
    bases: list[type[Exception]] = [type(error)]
    for name in _attribute_names(bases):
        text = facts.get(f"exception_{name}")
        if text is None:
            continue
        if name not in _NUMBERS:
            setattr(error, name, text)
        elif len(text) <= _MOST_DIGITS and text.removeprefix("-").isdecimal():
            setattr(error, name, int(text))
    # Python prints this attribute instead of the text of the error
    if isinstance(error, SyntaxError):
        error.msg = str(error)
    elif isinstance(error, UnicodeDecodeError):  # otherwise reading it raises TypeError
        error.object = b""
    elif isinstance(error, UnicodeEncodeError | UnicodeTranslateError):
        error.object = ""

"""Checks for duplicate registrations: a kernel overrides an older one, all others raise an error.

Several kernels of one operator and key may be registered; the newest serves the key, and closing it
brings back the one before. A second definition, DEF library, fallback or rule is an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

from opdispatch.dispatch.operator_entry import OperatorEntry
from opdispatch.dispatch.registration import (
    Registration,
    RegistrationHandle,
    RuleKey,
    rule_key,
    runtime_keys_of_fallback,
)
from opdispatch.errors import DuplicateDefinitionError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS
from opdispatch.schema.function_schema import OperatorName

# As in PyTorch: an external backend may provide its own autograd fallback, and a fallback for a
# functionality such as Dense serves no slot, so two of these do not conflict.
_MANY_FALLBACKS = frozenset(
    key for key in DispatchKey if key not in RUNTIME_KEYS or key.name == "AutogradPrivateUse1"
)


class Registered(Protocol):
    """The registrations of a dispatcher so far, newest first."""

    @property
    def entries(self) -> Mapping[OperatorName, OperatorEntry]:
        """The operators."""

    @property
    def namespaces(self) -> Mapping[str, Sequence[RegistrationHandle]]:
        """The DEF libraries by namespace."""

    @property
    def fallbacks(self) -> Mapping[DispatchKey, Sequence[RegistrationHandle]]:
        """The fallbacks by runtime key."""

    @property
    def rules(self) -> Mapping[RuleKey, Sequence[RegistrationHandle]]:
        """The rules by operator and class."""


def refuse_duplicate(registered: Registered, registration: Registration) -> None:
    """Raise DuplicateDefinitionError if it is the second one of a kind that allows only one."""
    match registration.kind:
        case "library":
            namespace = registration.namespace
            what = f"the namespace {namespace!r} has a library of kind DEF"
            hint = "a FRAGMENT library can add operators to it"
            taken = registered.namespaces.get(namespace)
            _refuse(taken, registration, what, hint, namespace=namespace)
        case "def":
            assert registration.schema is not None
            name = registration.schema.name
            entry = registered.entries.get(name)
            if entry is not None and entry.definitions:
                what = f"operator {name} is defined"
                _refuse(entry.definitions, registration, what, operator=str(name))
        case "fallback":
            for key in runtime_keys_of_fallback(registration.key):
                if key not in _MANY_FALLBACKS:
                    what = f"the dispatch key {key} has a fallback"
                    _refuse(registered.fallbacks.get(key), registration, what)
        case "dispatch_rule":
            key_of_rule = rule_key(registration)
            name, cls = key_of_rule
            what = f"{cls.__qualname__} has a rule for {name}"
            _refuse(registered.rules.get(key_of_rule), registration, what)


def refuse_override(name: OperatorName, key: DispatchKey, kernels: Iterable[Registration]) -> None:
    """Raise DuplicateDefinitionError if one of an operator's kernels is for ``key``."""
    for kernel in kernels:
        if kernel.key is key:
            raise DuplicateDefinitionError(
                f"operator {name} has a kernel for {key} already, {kernel.debug}",
                hint="allow_override=True covers it",
                operator=str(name),
                key=str(key),
            )


def _refuse(
    taken: Sequence[RegistrationHandle] | None,
    registration: Registration,
    what: str,
    hint: str = "",
    **facts: str,
) -> None:
    if taken:
        first = taken[0].registration
        if first.site and first.site == registration.site:  # a module that is loaded anew
            hint = "close the old library first, or use custom_op, which replaces its own"
        raise DuplicateDefinitionError(
            f"{what} already, {first.debug}; the second one was {registration.debug}",
            hint=hint,
            first_site=first.site,
            second_site=registration.site,
            **facts,
        )

"""Registrations <-> ``opdispatch.v1.Registration``: the wire format of registrations.

Kernels are not sent. The receiver makes a forwarding kernel from the index of the registration in
its batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache

from opdispatch import (
    DispatchKey,
    DispatchKeyError,
    KernelFunction,
    OperatorName,
    Registration,
    parse_schema,
)
from opdispatch_wire.errors import WireError
from opdispatch_wire.status import protobuf_text
from opdispatch_wire.v1 import interpreter_pb2 as pb

MakeKernel = Callable[[int, str], KernelFunction]
"""Makes a kernel from a registration's index in its batch, and the kernel's docstring."""


def rules_last(registrations: Iterable[Registration]) -> list[Registration]:
    """Return the registrations in order, with rules last, and without those of modes."""
    return sorted(registrations, key=lambda each: each.kind == "dispatch_rule")


def batch_to_proto(
    registrations: Iterable[Registration],
    max_concurrency: int = 1,
    device_types: Iterable[str] = (),
) -> pb.RegistrationBatch:
    """Return the registrations of a library, in the order of ``rules_last``, and its settings."""
    batch = pb.RegistrationBatch(max_concurrency=max_concurrency, device_types=device_types)
    for registration in registrations:
        if registration.kind != "dispatch_rule":
            fill_registration(batch.registrations.add(), registration)
    return batch


def batch_from_proto(batch: pb.RegistrationBatch, make_kernel: MakeKernel) -> list[Registration]:
    """Return the registrations in order, with kernels from ``make_kernel`` where needed.

    Raises RegistrationError, or WireError for a registration of an unknown kind.
    """
    names: dict[str, OperatorName] = {}
    return [
        registration_from_proto(message, place, make_kernel, names)
        for place, message in enumerate(batch.registrations)
    ]


def fill_registration(message: pb.Registration, registration: Registration) -> None:
    """Write one registration into its message."""
    message.site = protobuf_text(registration.site)
    match registration.kind:
        case "library":
            message.namespace.namespace = registration.namespace
        case "def":
            message.definition.schema = str(registration.schema)
            message.definition.tags.extend(registration.tags)
        case "impl":
            message.implementation.operator = str(registration.name)
            message.implementation.key = _key_to_proto(registration.key)
            _fill_traits(message.implementation.kernel, registration.kernel)
        case "fallback":
            message.fallback.key = _key_to_proto(registration.key)
            _fill_traits(message.fallback.kernel, registration.kernel)


def registration_from_proto(
    message: pb.Registration, place: int, make_kernel: MakeKernel, names: dict[str, OperatorName]
) -> Registration:
    """Return the registration at ``place`` in its batch.

    ``names`` are those of the operators that its batch has defined before. Raises the errors of
    ``batch_from_proto``.
    """
    match message.WhichOneof("kind"):
        case "namespace":
            return Registration("library", message.site, namespace=message.namespace.namespace)
        case "definition":
            schema = parse_schema(message.definition.schema)
            names[str(schema.name)] = schema.name
            tags = tuple(message.definition.tags)
            return Registration("def", message.site, schema=schema, tags=tags)
        case "implementation":
            body = message.implementation
            return Registration(
                "impl",
                message.site,
                name=names.get(body.operator) or OperatorName.parse(body.operator),
                key=_key_from_proto(body.key),
                kernel=_kernel_from_proto(body.kernel, place, make_kernel),
            )
        case "fallback":
            return Registration(
                "fallback",
                message.site,
                key=_key_from_proto(message.fallback.key),
                kernel=_kernel_from_proto(message.fallback.kernel, place, make_kernel),
            )
        case _:
            raise WireError(f"$.registrations[{place}] has a kind that this daemon does not know")


def _fill_traits(message: pb.KernelTraits, kernel: KernelFunction | None) -> None:
    message.SetInParent()
    if kernel is not None:
        message.fallthrough = kernel.is_fallthrough
        message.with_keyset = kernel.with_keyset
        message.documentation = protobuf_text(kernel.documentation)


def _kernel_from_proto(
    traits: pb.KernelTraits, place: int, make_kernel: MakeKernel
) -> KernelFunction:
    if traits.fallthrough:
        return KernelFunction.fallthrough()
    return make_kernel(place, traits.documentation)


def _key_to_proto(key: DispatchKey | None) -> str:
    # PyTorch calls a kernel without a key a catch-all.
    return (DispatchKey.CompositeImplicitAutograd if key is None else key).name


@cache
def _key_from_proto(name: str) -> DispatchKey:
    try:
        return DispatchKey[name]
    except KeyError:
        raise DispatchKeyError(f"there is no dispatch key {name!r}", key=name) from None

"""Generators <-> ``v1.GeneratorState``: a call carries the state, and its reply the new state.

    caller      generator_to_proto    ->  Value.generator
    callee                                generator_from_proto
                                          ... the kernel draws ...
    callee      add_generator_uses    ->  CallReply.generators
    caller                                take_generator_uses

The caller's generator continues where the callee's ended, so that a sequence of calls draws the
same numbers whichever processes they run in.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterable
from typing import Any

from opdispatch.errors import DeviceError
from opdispatch.keys.dispatch_key_set import DispatchKeySet
from opdispatch.tensors.generator import Generator, GeneratorState
from opdispatch_wire.errors import WireError
from opdispatch_wire.v1 import execution_pb2, values_pb2


def generator_to_proto(message: values_pb2.GeneratorState, generator: Generator) -> None:
    """Fill an empty message."""
    message.device = generator.device
    message.seed, message.offset = generator.state
    if generator.key_bits != Generator(generator.device).key_bits:
        message.dispatch_keys = generator.key_bits


def generator_from_proto(message: values_pb2.GeneratorState, *, at: str) -> Generator:
    """Return a new generator in that state. Raises WireError."""
    keys = DispatchKeySet(message.dispatch_keys) if message.dispatch_keys else None
    try:
        generator = Generator(message.device, key_set=keys)
    except DeviceError:
        raise WireError(
            f"{at}.device is {reprlib.repr(message.device)}, which this process does not have"
        ) from None
    generator.state = _state_of(message)
    return generator


def add_generator_uses(
    reply: execution_pb2.CallReply,
    sent: Iterable[tuple[Any, values_pb2.Value, values_pb2.ArgumentRef]],
) -> None:
    """Add the new states of generators among the arguments, with the states they were sent in."""
    for value, message, reference in sent:
        if type(value) is Generator and message.WhichOneof("kind") == "generator":
            if value.state == _state_of(message.generator):
                continue
            use = reply.generators.add(argument=reference, before=message.generator)
            generator_to_proto(use.after, value)


def take_generator_uses(
    reply: execution_pb2.CallReply, find: Callable[[values_pb2.ArgumentRef, str], Any]
) -> None:
    """Advance the caller's generators; ``find`` returns an argument.

    Raises ArgumentError for a generator that was used meanwhile, and WireError.
    """
    for i, use in enumerate(reply.generators):
        at = f"$.generators[{i}]"
        generator = find(use.argument, at)
        if type(generator) is not Generator:
            raise WireError(f"{at} refers to an argument that is not a generator")
        generator.advance(_state_of(use.before), _state_of(use.after))


def _state_of(message: values_pb2.GeneratorState) -> GeneratorState:
    return GeneratorState(message.seed, message.offset)

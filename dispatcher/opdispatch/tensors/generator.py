"""``Generator``: a random number generator whose state is a seed and an offset.

Mirrors ``ATen/core/Generator.h``. The state is a pair of integers, as in PyTorch's CUDA generators.
Random bits come from Philox4x64-10, a function of the seed and a block number; the offset is the
number of the next block. The number of blocks that a call consumes depends only on the number of
elements it creates, so a state can be sent to another process, and the call produces the same bits
there, on any device.

J. K. Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (2011),
https://numpy.org/doc/stable/reference/random/bit_generators/philox.html
"""

from __future__ import annotations

import operator
import secrets
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import numpy as np

from opdispatch.arrays import COMPONENTS, canonical_device, split_device
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey, to_runtime_key
from opdispatch.keys.dispatch_key_set import DispatchKeySet

DEFAULT_SEED = 67280421310721
"""The seed of a new generator, as in PyTorch (``c10::detail::default_rng_seed_val``)."""
WORDS_OF_BLOCK = 4
"""The number of 64-bit words in a Philox block."""

_WORD = 1 << 64


class GeneratorState(NamedTuple):
    """The immutable state of a generator, without its device."""

    seed: int
    offset: int
    """The number of the next block."""


class Generator:
    """A sequence of random numbers for operators with an argument ``Generator? generator``.

    ``device`` is the device that produces the numbers: "cpu", "cuda", "cuda:1". This process need
    not have that device. Generators are thread-safe: concurrent calls draw different numbers, in an
    unspecified order. ``key_set`` holds the dispatch keys that the generator adds to a call; by
    default, those of the device's backend.
    """

    __slots__ = ("_key_set", "_mutex", "_state", "device")

    def __init__(self, device: str = "cpu", *, key_set: DispatchKeySet | None = None) -> None:
        kind, _ = split_device(device)
        self.device = device
        self._key_set = key_set or DispatchKeySet.of(
            to_runtime_key(DispatchKey.Dense, COMPONENTS[kind])
        )
        self._mutex = threading.Lock()  # serializes updates of _state, which is replaced as a whole
        self._state = GeneratorState(DEFAULT_SEED, 0)

    @property
    def key_set(self) -> DispatchKeySet:
        """The dispatch keys that the generator adds to a call when passed as an argument."""
        return self._key_set

    @property
    def key_bits(self) -> int:
        """The bits of ``key_set``."""
        return self._key_set.bits

    @property
    def state(self) -> GeneratorState:
        """The current state: a seed and an offset. Can be assigned."""
        return self._state

    @state.setter
    def state(self, value: tuple[int, int]) -> None:
        seed, offset = value
        if not (0 <= seed < _WORD and 0 <= offset < _WORD):
            raise ArgumentError(
                "a generator's seed and offset are unsigned integers of 64 bits, not "
                f"{seed} and {offset}"
            )
        with self._mutex:
            self._state = GeneratorState(seed, offset)

    def manual_seed(self, seed: int) -> Generator:
        """Set the seed, reset the offset to 0, and return the generator.

        A negative seed is taken modulo 2**64. Raises ArgumentError for a seed of more than 64 bits.
        """
        self.state = GeneratorState(_checked_seed(seed), 0)
        return self

    def seed(self) -> int:
        """Set an unpredictable seed and return it."""
        seed = secrets.randbits(64)
        self.state = GeneratorState(seed, 0)
        return seed

    def initial_seed(self) -> int:
        """Return the current seed."""
        return self._state.seed

    def get_offset(self) -> int:
        """Return the offset: the number of the next block."""
        return self._state.offset

    def set_offset(self, offset: int) -> None:
        """Set the offset, in blocks. Raises ArgumentError for an invalid offset."""
        self.state = (self._state.seed, offset)

    def get_state(self) -> np.ndarray[Any, Any]:
        """Return the state as 16 bytes, uint8: the seed and the offset, little-endian."""
        return np.frombuffer(np.array(self._state, "<u8").tobytes(), np.uint8).copy()

    def set_state(self, new_state: Any) -> None:
        """Restore a state returned by ``get_state``. Raises ArgumentError for anything else."""
        given = np.asarray(new_state)
        if given.dtype != np.uint8 or given.shape != (16,):
            raise ArgumentError(
                "the state of a generator is an array of 16 bytes (uint8), not of shape "
                f"{list(given.shape)} and type {given.dtype}"
            )
        seed, offset = np.frombuffer(given.tobytes(), "<u8").tolist()
        self.state = (seed, offset)

    def clone_state(self) -> Generator:
        """Return a new generator with the same device and state."""
        clone = Generator(self.device, key_set=self._key_set)
        clone._state = self._state
        return clone

    def reserve(self, words: int) -> GeneratorState:
        """Reserve ``words`` 64-bit words, rounded up to whole blocks; return the state before."""
        blocks = -(-words // WORDS_OF_BLOCK)
        with self._mutex:
            state = self._state
            self._state = GeneratorState(state.seed, (state.offset + blocks) % _WORD)
        return state

    def advance(self, before: GeneratorState, after: GeneratorState) -> None:
        """Replace the state ``before``, with which a call in another process began, by ``after``.

        Raises ArgumentError if the generator was used in the meantime, since both uses drew the
        same numbers.
        """
        with self._mutex:
            if self._state == before:
                self._state = after
                return
        raise ArgumentError(
            "a generator was used during a call in another process, so both drew the same random "
            "numbers",
            hint="wait for the result of one call before the next, or use a generator for each",
        )

    def __repr__(self) -> str:
        seed, offset = self._state
        return f"Generator({self.device!r}, seed={seed}, offset={offset})"


def words_from(state: GeneratorState, count: int) -> np.ndarray[Any, Any]:
    """Return ``count`` random words (uint64), beginning with the block at the state's offset."""
    found = _of_thread.__dict__
    if not found:  # creating one per call takes ten times as long as setting its state
        found["bits"] = np.random.Philox(key=0)
        found["state"] = found["bits"].state
    bits, whole = found["bits"], found["state"]
    whole["state"]["key"][:] = (state.seed, 0)
    whole["state"]["counter"][:] = (state.offset, 0, 0, 0)
    bits.state = whole
    words: np.ndarray[Any, Any] = bits.random_raw(count)
    return words


_of_thread = threading.local()


def key_bits_of_generator(value: Any) -> int:
    """Return the keys that a Generator argument adds to a call; 0 for a NumPy generator."""
    return value.key_bits if isinstance(value, Generator) else 0


_mutex = threading.Lock()  # protects _defaults and _seed
_defaults: dict[str, Generator] = {}
_instead: ContextVar[Mapping[str, Generator] | None] = ContextVar(
    "opdispatch_default_generators", default=None
)
_seed: int | None = None  # the last seed of manual_seed, for devices that are first used later


def default_generator(device: str = "cpu") -> Generator:
    """Return this process's default generator for a device.

    Its seed is unpredictable unless ``manual_seed`` was called. Raises DeviceError for an invalid
    device.
    """
    name = canonical_device(device)
    if (instead := _instead.get()) and name in instead:
        return instead[name]
    with _mutex:
        found = _defaults.get(name)
        if found is None:
            found = _defaults[name] = Generator(name)
            if _seed is None:
                found.seed()
            else:
                found.manual_seed(_seed)
        return found


def default_generator_states() -> dict[str, GeneratorState]:
    """Return the states of the default generators used so far in this process, by device."""
    with _mutex:
        return {name: generator.state for name, generator in _defaults.items()}


@contextmanager
def with_default_generators(generators: Mapping[str, Generator]) -> Iterator[None]:
    """Replace this task's default generators within the block.

    The keys of ``generators`` are devices with an index, such as ``"cuda:0"``.
    """
    names = [(canonical_device(device), each) for device, each in generators.items()]
    token = _instead.set(dict(names))
    try:
        yield
    finally:
        _instead.reset(token)


def manual_seed(seed: int) -> Generator:
    """Seed the default generators of all devices of this process; return that of the CPU."""
    global _seed
    checked = _checked_seed(seed)
    with _mutex:
        _seed = checked
        for generator in _defaults.values():
            generator.manual_seed(checked)
    return default_generator()


def _checked_seed(seed: int) -> int:
    try:
        number = operator.index(seed)
    except TypeError:
        raise ArgumentError(f"a seed is an integer, not {type(seed).__name__}") from None
    if not -(1 << 63) <= number < _WORD:
        raise ArgumentError("a seed has at most 64 bits: it is from -2**63 to 2**64 - 1")
    return number % _WORD

"""Records the dispatch keys and the key-set arithmetic of a real PyTorch in golden/keys.json.gz.

Run it with a Python that has the CPU build of torch; the test suite itself does not need one:

    python tests/conformance/record_keys.py

A vector is a pair of words and a key, with everything that PyTorch says about them. The words are
drawn at random: full words, words of a few bits, and the sets that tensors have.
"""

import random

import torch
from golden_file import GOLDEN, SCALE, SEED, write_golden

C = torch._C
Key, Set = C.DispatchKey, C.DispatchKeySet

VECTORS = 500 * SCALE
LAST = 155  # CompositeExplicitAutogradNonFunctional
FULL = C._dispatch_keyset_full().raw_repr()
# They have names in the list of keys, and are none: nothing may be registered for them.
MARKERS = {
    value
    for name, value in ((n, int(k)) for n, k in Key.__members__.items())
    if name.startswith("StartOf")
}
UNNAMED = {47}  # EndOfFunctionalityKeys
KEYS = [value for value in range(LAST + 1) if value not in MARKERS | UNNAMED]
ALIASES = [value for value in KEYS if C._dispatch_is_alias_key(Key(value))]


def name_of(value: int) -> str:
    return C._dispatch_key_name(Key(value))


def parses(name: str) -> bool:
    try:
        C._dispatch_key_parse(name)
    except RuntimeError:
        return False
    return True


def describe_key(value: int) -> dict:
    key = Key(value)
    return {
        "name": name_of(value),
        "value": value,
        "alias": C._dispatch_is_alias_key(key),
        "parses": parses(name_of(value)),
        "bits": Set(key).raw_repr(),
        "full_after": C._dispatch_keyset_full_after(key).raw_repr(),
        "backends_of_autograd": C._dispatch_get_backend_keyset_from_autograd(key).raw_repr(),
    }


def names_in(keys: Set) -> list[str]:
    inside = C._dispatch_keyset_to_string(keys).removeprefix("DispatchKeySet(").removesuffix(")")
    return inside.split(", ") if inside else []


def describe_alias(value: int) -> list[str]:
    return [name_of(k) for k in KEYS if C._dispatch_is_included_in_alias(Key(k), Key(value))]


def random_word(rng: random.Random) -> int:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.getrandbits(64) & FULL
    if kind == 1:
        return rng.getrandbits(64) & rng.getrandbits(64) & rng.getrandbits(64) & FULL
    if kind == 2:
        return sum({1 << rng.randrange(FULL.bit_length()) for _ in range(rng.randrange(4))})
    keys = Set(Key(rng.choice(KEYS)))
    for _ in range(rng.randrange(4)):
        keys = keys.add(Key(rng.choice(KEYS)))
    return keys.raw_repr()


def describe_vector(rng: random.Random) -> dict:
    a, b, key = random_word(rng), random_word(rng), rng.choice(KEYS)
    one, two = Set.from_raw_repr(a), Set.from_raw_repr(b)
    return {
        "a": a,
        "b": b,
        "key": name_of(key),
        "names": names_in(one),
        "highest": int(one.highestPriorityTypeId()),
        "highest_name": C._dispatch_key_name(one.highestPriorityTypeId()),
        "or": (one | two).raw_repr(),
        "and": (one & two).raw_repr(),
        "sub": (one - two).raw_repr(),
        "add": one.add(Key(key)).raw_repr(),
        "remove": one.remove(Key(key)).raw_repr(),
        "has": one.has(Key(key)),
    }


def main() -> None:
    rng = random.Random(SEED)
    default_include = C._dispatch_tls_local_include_set()
    default_exclude = C._dispatch_tls_local_exclude_set()
    content = {
        "full": {"bits": FULL, "names": names_in(Set.from_raw_repr(FULL))},
        "keys": [describe_key(value) for value in KEYS],
        "markers": {str(value): name_of(value) for value in sorted(MARKERS)},
        "aliases": {name_of(value): describe_alias(value) for value in ALIASES},
        "autogradother_backends": C._dispatch_autogradother_backends.raw_repr(),
        "local_defaults": [default_include.raw_repr(), default_exclude.raw_repr()],
        "plain_cpu_tensor": C._dispatch_keys(torch.ones(1)).raw_repr(),
        "vectors": [describe_vector(rng) for _ in range(VECTORS)],
    }
    write_golden(GOLDEN / "keys.json.gz", __file__, torch.__version__, SEED, content)


if __name__ == "__main__":
    main()

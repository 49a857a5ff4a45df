"""State after blocks of guards, autocast and inference mode that end in any order.

A program enters and leaves blocks, not always the innermost first, and sets keys by hand between.
After each step both sides have the same words of included and excluded keys.
"""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from golden_file import seeds

import opdispatch
from opdispatch import DispatchKeySet, local_dispatch_key_set

torch = pytest.importorskip("torch")

KEYS = ["Conjugate", "Negative", "Meta", "CPU", "ADInplaceOrView", "Functionalize"]
KINDS = ["include", "exclude", "force", "autocast", "inference", "set"]


class Ours:
    @staticmethod
    def words():
        return tuple(keys.bits for keys in local_dispatch_key_set())

    @staticmethod
    def block(kind, key, flag):
        return {
            "include": lambda: opdispatch.IncludeDispatchKeyGuard(key),
            "exclude": lambda: opdispatch.ExcludeDispatchKeyGuard(key),
            "force": lambda: opdispatch.ForceDispatchKeyGuard(
                DispatchKeySet.of(key), local_dispatch_key_set()[1]
            ),
            "autocast": lambda: opdispatch.autocast("cpu", enabled=flag),
            "inference": lambda: opdispatch.inference_mode(flag),
        }[kind]()

    set_included = staticmethod(opdispatch.tls_set_dispatch_key_included)
    set_excluded = staticmethod(opdispatch.tls_set_dispatch_key_excluded)


class Theirs:
    @staticmethod
    def words():
        included = torch._C._dispatch_tls_local_include_set()
        return included.raw_repr(), torch._C._dispatch_tls_local_exclude_set().raw_repr()

    @staticmethod
    def block(kind, key, flag):
        keys = torch._C.DispatchKeySet(torch._C._parse_dispatch_key(key))
        return {
            "include": lambda: torch._C._IncludeDispatchKeyGuard(torch._C._parse_dispatch_key(key)),
            "exclude": lambda: torch._C._ExcludeDispatchKeyGuard(keys),
            "force": lambda: torch._C._ForceDispatchKeyGuard(
                keys, torch._C._dispatch_tls_local_exclude_set()
            ),
            "autocast": lambda: torch.autocast("cpu", enabled=flag),
            "inference": lambda: torch.inference_mode(flag),
        }[kind]()

    set_included = staticmethod(torch._C._dispatch_tls_set_dispatch_key_included)
    set_excluded = staticmethod(torch._C._dispatch_tls_set_dispatch_key_excluded)


def run(side, seed):
    """Return the words after each step of a program, in a thread that begins with none."""
    rng = random.Random(seed)
    entered, seen = [], []
    for _ in range(12):
        kind, key, flag = rng.choice(KINDS), rng.choice(KEYS), rng.random() < 0.5
        if entered and rng.random() < 0.4:
            place = rng.randrange(len(entered)) if rng.random() < 0.4 else -1
            entered.pop(place).__exit__(None, None, None)
        elif kind == "set":
            rng.choice([side.set_included, side.set_excluded])(key, flag)
        else:
            entered.append(block := side.block(kind, key, flag))
            block.__enter__()
        seen.append(side.words())
    while entered:
        entered.pop().__exit__(None, None, None)
        seen.append(side.words())
    return seen


def test_blocks_restore_what_pytorch_restores_in_any_order():
    for seed in seeds(300):
        with ThreadPoolExecutor(1) as pool:
            ours, theirs = pool.submit(run, Ours, seed), pool.submit(run, Theirs, seed)
            assert ours.result() == theirs.result(), f"seed {seed}"

"""Records dispatch tables of a real PyTorch in golden/tables.json.gz.

Run it with a Python that has the CPU build of torch; the test suite itself does not need one:

    python tests/conformance/record_tables.py

A program defines ``NS::foo``, then registers kernels for keys and undoes registrations, at random.
After every step the file has the table that PyTorch prints, and at the end of the registrations
the state. ``fallbacks`` has the table of an operator without kernels; those rows are left out of
all other tables, where they stand on exactly the keys that have no other row (which this script
checks).
"""

import itertools
import random
import warnings

import torch
from golden_file import GOLDEN, SCALE, SEED, write_golden

C = torch._C
Key = C.DispatchKey

PROGRAMS = 400 * SCALE
NOT_KEYS = {47, *(int(k) for n, k in Key.__members__.items() if n.startswith("StartOf"))}
KEYS = {C._dispatch_key_name(Key(v)): Key(v) for v in range(156) if v not in NOT_KEYS}
ALIASES = [name for name, key in KEYS.items() if C._dispatch_is_alias_key(key)]
# The keys between which the rules of precedence have something to decide.
TELLING = [
    *("CPU", "CUDA", "HIP", "MTIA", "XLA", "Meta", "Dense", "AutogradCPU", "AutogradHIP"),
    *("AutogradOther", "AutogradFunctionality", "AutogradNestedTensor", "NestedTensorCPU"),
    *("NestedTensor", "SparseCPU", "Sparse", "SparseCsrXLA", "QuantizedCPU", "FPGA", "MkldnnCPU"),
    *("BackendSelect", "ADInplaceOrView", "FuncTorchBatched", "Undefined"),
]
# Every pair of aliases, and every alias with every telling key, comes first.
CHOSEN = [
    *itertools.combinations(ALIASES, 2),
    *itertools.product(ALIASES, TELLING),
]


def random_program(rng: random.Random, number: int) -> list[list]:
    """Steps: ["impl", key, falls through] and ["undo", number of an impl, counted from 0]."""
    if number < len(CHOSEN):
        return [["impl", key, False] for key in rng.sample(CHOSEN[number], 2)]
    steps: list[list] = []
    live: list[int] = []
    for _ in range(rng.randint(1, 6)):
        if live and rng.random() < 0.2:
            steps.append(["undo", live.pop(rng.randrange(len(live)))])
            continue
        pool = rng.choice([ALIASES, ALIASES, TELLING, list(KEYS)])
        live.append(sum(step[0] == "impl" for step in steps))
        steps.append(["impl", rng.choice(pool), rng.random() < 0.2])
    return steps


def kernel(x: torch.Tensor) -> torch.Tensor:
    return x


def rows_of(table: str) -> list[list[str]]:
    """The table's lines, the ones with equal text and neighbouring keys folded into one."""
    rows: list[list[str]] = []
    for line in table.splitlines():
        key, text = line.split(": ", 1)
        if rows and rows[-1][1] == text:
            rows[-1][0] += f" {key}"
        else:
            rows.append([key, text])
    return rows


def without_fallbacks(table: str, fallbacks: str) -> str:
    kept = [line for line in table.splitlines() if not line.endswith("[backend fallback]")]
    own = {line.split(": ", 1)[0] for line in kept}
    missing = [line for line in fallbacks.splitlines() if line.split(": ", 1)[0] not in own]
    assert sorted(kept + missing) == sorted(table.splitlines())
    return "\n".join(kept)


def run(number: int, steps: list[list], fallbacks: str) -> dict:
    namespace = f"p{number}"
    owner = C._dispatch_library("DEF", namespace, "", "DEF", 0)
    owner.def_("foo(Tensor x) -> Tensor", "")
    libraries, tables = [], []
    for step in steps:
        if step[0] == "undo":
            libraries[step[1]].reset()
        else:
            place = len(libraries)
            library = C._dispatch_library("IMPL", namespace, "", f"K{place}", place)
            function = torch.library.fallthrough_kernel if step[2] else kernel
            library.impl("foo", KEYS[step[1]], function)
            libraries.append(library)
        table = without_fallbacks(C._dispatch_dump_table(f"{namespace}::foo"), fallbacks)
        tables.append(rows_of(table))
    state = C._dispatch_dump(f"{namespace}::foo").splitlines()
    for library in (*libraries, owner):
        library.reset()
    return {"steps": steps, "tables": tables, "state": state}


def main() -> None:
    warnings.simplefilter("ignore")  # torch warns of the first kernel that covers another
    rng = random.Random(SEED)
    owner = C._dispatch_library("DEF", "bare", "", "DEF", 0)
    owner.def_("foo(Tensor x) -> Tensor", "")
    fallbacks = C._dispatch_dump_table("bare::foo")
    programs = [run(n, random_program(rng, n), fallbacks) for n in range(PROGRAMS)]
    content = {"fallbacks": fallbacks.splitlines(), "programs": programs}
    write_golden(GOLDEN / "tables.json.gz", __file__, torch.__version__, SEED, content)


if __name__ == "__main__":
    main()

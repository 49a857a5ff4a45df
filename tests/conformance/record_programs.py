"""Records registration programs, step by step, of a real PyTorch in golden/programs.json.gz.

Run it with a Python that has the CPU build of torch; the test suite itself does not need one:

    python tests/conformance/record_programs.py

A program defines, implements, falls back and undoes at random, over three operators of a
namespace, in any order; some of its steps are wrong. A "keyed" step implements in a library that
has a dispatch key of its own. After every step the file has

    refused    whether PyTorch raised
    dangling   the operators that it finds implemented and not defined
    states     what it dumps for each operator
    tables     the dispatch table of each operator, without the backend fallbacks that PyTorch
               itself registers

each of the last two only where it is not the same as after the step before.
"""

import random
import warnings

import torch
from golden_file import GOLDEN, SCALE, SEED, write_golden
from record_tables import ALIASES, KEYS, TELLING, kernel, rows_of

C = torch._C

PROGRAMS = 150 * SCALE
OPERATORS = ["f", "f.two", "g"]
SIGNATURES = [
    *("(Tensor x) -> Tensor", "(Tensor x) -> Tensor", "(Tensor x) -> Tensor"),
    *("(Tensor(a!) y=None, *) -> Tensor(a!)", "(Tensor x) -> ()", "(Tensor x, int n=1) -> Tensor"),
    *("(Tensor[] x) -> Tensor", "(Tensor? x) -> Tensor", ""),  # the last is no schema
]
ANALYSES = ["", "", "FROM_SCHEMA", "CONSERVATIVE", "PURE_FUNCTION", "SOMETHING"]
# The keys whose names PyTorch's parser takes, which is how a C++ kernel's key is given, and ones
# that are none.
PARSED = [name for name in KEYS if C._parse_dispatch_key(name) is not None]
WRONG_KEYS = ["cpu", "StartOfDenseBackends", "EndOfFunctionalityKeys", "DefaultBackend", "Nothing"]
TAKEN = [name for name, key in KEYS.items() if C._dispatch_has_backend_fallback(key)]
FREE = [name for name in KEYS if name not in TAKEN]
# PyTorch takes a second fallback for AutogradPrivateUse1, and is left with none when that is
# undone; here the first is in force again.
WITH_FALLBACK = [name for name in KEYS if name != "AutogradPrivateUse1"]


def random_program(rng: random.Random) -> list[list]:
    """Steps; those that undo name the step they undo by its place."""
    steps: list[list] = []
    done: list[int] = []
    for place in range(rng.randint(4, 12)):
        kind = rng.choices(
            ["def", "impl", "keyed", "fallback", "library", "undo", "stray"],
            [25, 33, 8, 12, 6, 25, 4],
        )[0]
        operator = rng.choice(OPERATORS)
        if kind == "undo" and done:
            steps.append(["undo", done.pop(rng.randrange(len(done)))])
            continue
        done.append(place)
        if kind == "def":
            steps.append(["def", operator, rng.choice(SIGNATURES), rng.choice(ANALYSES)])
        elif kind == "fallback":
            pool = rng.choice([FREE, FREE, WITH_FALLBACK, ALIASES])
            steps.append(["fallback", rng.choice(pool), rng.random() < 0.4])
        elif kind == "library":
            steps.append(["library"])
        elif kind == "keyed":
            own = rng.choice([*rng.sample(PARSED, 2), "CPU", "Undefined", rng.choice(WRONG_KEYS)])
            of_library = rng.choice(["IMPL", "IMPL", "IMPL", "DEF", "FRAGMENT"])
            given = rng.choice([own, "CPU", "Undefined", rng.choice(PARSED)])
            steps.append(["keyed", operator, of_library, own, given])
        elif kind == "stray":
            steps.append(["stray", rng.choice(["def", "impl", "fallback", "def in IMPL"])])
        else:
            how = rng.choice(["python", "python", "fallthrough", "signed", "signed"])
            if how == "signed":
                pool = rng.choice([PARSED, PARSED, PARSED, PARSED, PARSED, WRONG_KEYS])
            else:
                pool = rng.choice([ALIASES, TELLING, list(KEYS)])
            steps.append(["impl", operator, rng.choice(pool), how])
    return steps


def apply(namespace: str, place: int, step: list) -> object:
    """Do a step; return the library that undoes it when it is reset."""

    def library(kind: str, ns: str = namespace, key: str = "") -> object:
        return C._dispatch_library(kind, ns, key, f"step{place}", place)

    match step:
        case ["def", name, signature, analysis]:
            made = library("FRAGMENT")
            made.def_(name + signature, analysis)
        case ["impl", name, key, "signed"]:
            made = library("IMPL")
            made.impl_t_t(name, key, f"registered at step{place}:{place}")
        case ["impl", name, key, how]:
            made = library("IMPL")
            falls_through = how == "fallthrough"
            function = torch.library.fallthrough_kernel if falls_through else kernel
            made.impl(name, KEYS[key], function)
        case ["keyed", name, kind, own, key]:
            made = library(kind, key=own)
            try:
                made.impl_t_t(name, key, f"registered at step{place}:{place}")
            except RuntimeError:
                made.reset()  # one of kind DEF has taken the namespace
                raise
        case ["fallback", "Undefined", _]:
            raise RuntimeError("PyTorch refuses it, and later crashes")
        case ["fallback", key, falls_through]:
            made = library("IMPL", "_")
            function = torch.library.fallthrough_kernel if falls_through else kernel
            try:
                made.fallback(KEYS[key], function)
            except RuntimeError:
                made.reset()  # it may have registered some of the keys of an alias
                raise
        case ["library"]:
            made = library("DEF")
        case ["stray", "def"]:
            library("FRAGMENT").def_("elsewhere::f(Tensor x) -> Tensor")
        case ["stray", "impl"]:
            library("IMPL").impl_t_t("elsewhere::f", "CPU")
        case ["stray", "fallback"]:
            library("IMPL").fallback(KEYS["FPGA"], kernel)
        case ["stray", "def in IMPL"]:
            library("IMPL").def_("f(Tensor x) -> Tensor")
    return made


def own_table(name: str) -> list[list[str]]:
    lines = C._dispatch_dump_table(name).splitlines()
    own = [line for line in lines if not line.endswith("[backend fallback]") or " step" in line]
    return rows_of("\n".join(own))


def own_state(name: str) -> str:
    """The state; empty for the name alone, which PyTorch keeps after a refused definition."""
    state = C._dispatch_dump(name)
    return "" if state == f"name: {name}\nschema: (none)\n" else state


def run(number: int, steps: list[list]) -> dict:
    namespace = f"programs{number}"
    names = [f"{namespace}::{operator}" for operator in OPERATORS]
    libraries: dict[int, object] = {}
    results: list[dict] = []
    states = dict.fromkeys(names, "")
    tables: dict[str, list] = {}
    for place, step in enumerate(steps):
        refused = False
        if step[0] == "undo":
            library = libraries.pop(step[1], None)
            if library is not None:  # else it had been refused
                library.reset()
        else:
            try:
                libraries[place] = apply(namespace, place, step)
            except RuntimeError:
                refused = True
        dangling = [text.splitlines()[0] for text in C._dispatch_find_dangling_impls()]
        result: dict = {
            "refused": refused,
            "dangling": sorted({d.removeprefix("name: ") for d in dangling} & set(names)),
            "states": {},
            "tables": {},
        }
        for name in names:
            state = own_state(name)
            if state != states[name]:
                result["states"][name] = states[name] = state
            table = own_table(name) if state else []
            if table != tables.get(name, []):
                result["tables"][name] = tables[name] = table
        results.append(result)
    for library in libraries.values():
        library.reset()
    return {"steps": steps, "results": results}


def main() -> None:
    warnings.simplefilter("ignore")
    rng = random.Random(SEED)
    programs = [run(number, random_program(rng)) for number in range(PROGRAMS)]
    left = [name for name, key in KEYS.items() if C._dispatch_has_backend_fallback(key)]
    assert left == TAKEN, "a program has left PyTorch with other fallbacks than before it"
    content = {"fallbacks": TAKEN, "programs": programs}
    write_golden(GOLDEN / "programs.json.gz", __file__, torch.__version__, SEED, content)


if __name__ == "__main__":
    main()

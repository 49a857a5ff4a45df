"""Records what a real PyTorch makes of schema texts in golden/schemas.json.gz.

Run it with a Python that has the CPU build of torch; the test suite itself does not need one:

    python tests/conformance/record_schemas.py

``real``, ``mutated``, ``random`` and ``probes`` are lists of pairs: a text, and what PyTorch says:

    null    refuses it
    true    accepts it and prints it as it is
    text    accepts it and prints this (with alias sets in order), which it reads back as the
            same schema
    false   accepts it and prints what it does not read back

``details`` has for probes what the printed schema does not show. ``equal`` has, for each of a few
signatures, the places of those that it equals. ``differences`` are signatures
compared with the one of a C++ kernel from Tensor to Tensor, ``inferred`` are Python functions
with the schema that ``torch.library.infer_schema`` gives them.
"""

import random
from typing import Any

import torch
from golden_file import GOLDEN, SCALE, SEED, write_golden
from infer_cases import CASES, define
from schema_texts import PROBES, mutate, random_schema, with_sorted_alias_sets

C = torch._C
MUTATIONS = 6000 * SCALE
RANDOM = 2500 * SCALE

SIGNATURES = [
    *("(Tensor x) -> Tensor", "(Tensor y=None) -> Tensor", "(Tensor x, Tensor y) -> Tensor"),
    *("(Tensor? x) -> Tensor", "(Tensor x) -> ()", "(*, Tensor x) -> Tensor", "() -> Tensor"),
    *("(Tensor(a!) x) -> Tensor(a!)", "(Tensor x, ...) -> Tensor", "(Tensor x) -> (Tensor a, ...)"),
    *("(Tensor[] x) -> Tensor", "(Tensor x) -> Tensor[]", "(int x) -> Tensor", "(Any x) -> Tensor"),
    *(
        "(Tensor x) -> (Tensor, Tensor)",
        "(...) -> ...",
        "(Tensor x) -> ...",
        "(Tensor x) -> (Tensor y)",
    ),
]

# Of which some are equal though they are not written alike, and some only nearly.
COMPARED = [
    *("(int x=1) -> ()", "(SymInt x=1) -> ()", "(float x=1) -> ()", "(int y=1) -> ()"),
    *("(Scalar x=1) -> ()", "(Scalar x=1.) -> ()", "(Scalar x=True) -> ()", "(int x) -> ()"),
    *("(t x) -> t", "(s x) -> s", "(t x, s y) -> ()", "(t x, t y) -> ()", "(Tensor x) -> Tensor"),
    *("(int[2] x=1) -> ()", "(int[2] x=[1, 1]) -> ()", "(SymInt[2] x=1) -> ()", "(int[] x) -> ()"),
    *("(int[2]? x) -> ()", "(int[]? x) -> ()", "(SymInt[]? x) -> ()", "(int[2] x) -> ()"),
    *(
        "(ScalarType x=long) -> ()",
        "(int x=4) -> ()",
        "(Layout x=strided) -> ()",
        "(int x=0) -> ()",
    ),
    *("(ScalarType? x) -> ()", "(int? x) -> ()", "(MemoryFormat? x) -> ()", "(SymInt? x) -> ()"),
    *(
        "(float x=0.) -> ()",
        "(float x=-0.) -> ()",
        "(float[] x=[1]) -> ()",
        "(float[] x=[1.]) -> ()",
    ),
    *(
        "(Tensor(a) x) -> ()",
        "(Tensor(b) x) -> ()",
        "(Tensor(a!) x) -> ()",
        "(Tensor(a -> *) x) -> ()",
    ),
    *(
        "(Tensor(a|b) x) -> ()",
        "(Tensor(b|a) x) -> ()",
        "(Tensor! x) -> ()",
        "(Tensor(a!)[] x) -> ()",
    ),
    *("(Dict(str, t) x) -> ()", "(Dict(str, s) x) -> ()", "(Dict(str, int) x) -> ()"),
    *("(Union(int, str) x) -> ()", "(Union(str, int) x) -> ()", "(Future(t) x) -> ()"),
    *("(Future(s) x) -> ()", "((int, t) x) -> ()", "((SymInt, s) x) -> ()", "(bool x) -> ()"),
    *("(SymBool x) -> ()", "(Device x) -> ()", "(str x) -> ()", "(Tensor? x=None) -> ()"),
    *("(Tensor? x) -> ()", "(*, int x) -> ()", "(...) -> ()", "() -> ()", "() -> ...", "() -> int"),
    *("() -> (int a)", "() -> (int b)", "() -> SymInt", "() -> (int, int)"),
]


def parse(text: str) -> Any:
    try:
        return C.parse_schema(text)
    except (RuntimeError, ValueError, IndexError):  # also what stoll and stod raise
        return None


def verdict(text: str) -> str | bool | None:
    schema = parse(text)
    if schema is None:
        return None
    try:
        printed = str(schema)
    except UnicodeDecodeError:
        return False
    again = parse(printed)
    if again is None or again != schema:
        return False
    printed = with_sorted_alias_sets(printed)
    if with_sorted_alias_sets(str(again)) != printed:
        return False
    return True if printed == text else printed


def details(text: str) -> list[dict] | None:
    schema = parse(text)
    if schema is None:
        return None
    try:
        return [
            {
                "name": a.name,
                "size": a.N,
                "has_default": a.has_default_value(),
                "default": repr(a.default_value),
                "kwarg_only": a.kwarg_only,
                "is_write": a.is_write,
                "is_out": a.is_out,
                "before": sorted(a.alias_info.before_set) if a.alias_info else None,
                "after": sorted(a.alias_info.after_set) if a.alias_info else None,
            }
            for a in schema.arguments
        ]
    except UnicodeDecodeError:
        return None


def equal_places(signature: str) -> list[int]:
    schema = parse(f"t::f{signature}")
    return [place for place, other in enumerate(COMPARED) if parse(f"t::f{other}") == schema]


def agrees_with_kernel(signature: str, number: int) -> bool:
    library = C._dispatch_library("FRAGMENT", "signatures", "")
    library.def_(f"f{number}{signature}")
    try:
        library.impl_t_t(f"f{number}")  # a C++ kernel from one Tensor to one
    except RuntimeError:
        return False
    return True


def inferred(case: dict) -> str | None:
    words = {"Tensor": torch.Tensor, "dtype": torch.dtype, "float32": torch.float32}
    words["device"] = torch.device
    function = define(case["source"], words)
    try:
        return torch.library.infer_schema(function, **case["options"])
    except ValueError:
        return None


def main() -> None:
    rng = random.Random(SEED)
    real = sorted({str(schema) for schema in C._jit_get_all_schemas()})
    texts = {
        "real": real,
        "mutated": [mutate(rng, rng.choice(real)) for _ in range(MUTATIONS)],
        "random": [random_schema(rng) for _ in range(RANDOM)],
        "probes": list(dict.fromkeys(PROBES)),
    }
    content = {
        **{kind: [[text, verdict(text)] for text in those] for kind, those in texts.items()},
        "details": {text: d for text in texts["probes"] if (d := details(text))},
        "equal": [[s, equal_places(s)] for s in COMPARED],
        "differences": [[s, agrees_with_kernel(s, n)] for n, s in enumerate(SIGNATURES)],
        "inferred": [{**case, "schema": inferred(case)} for case in CASES],
    }
    for kind, those in texts.items():
        accepted = sum(said is not None for _, said in content[kind])
        print(f"{kind}: {len(those)} texts, {accepted} accepted")
    write_golden(GOLDEN / "schemas.json.gz", __file__, torch.__version__, SEED, content)


if __name__ == "__main__":
    main()

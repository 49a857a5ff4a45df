"""Texts in and around the schema language, for comparing our parser with PyTorch's.

Three kinds: mutations of real schemas, schemas made at random from the grammar, and `PROBES`,
written by hand for the corners of the language.
"""

import random
import re

CHARACTERS = "abctxT_019()[]{},.:=!?*|->\"'#\\\n \t$é+-ejx5;@%"
WORDS = [
    *("Tensor", "int", "float", "bool", "str", "Scalar", "ScalarType", "Device", "Layout"),
    *("MemoryFormat", "Generator", "SymInt", "SymBool", "complex", "Any", "t", "None", "NoneType"),
    *("True", "False", "Dict", "Future", "RRef", "Await", "Union", "Stream", "Storage", "QScheme"),
    *("Quantizer", "Dimname", "AnyClassType", "double", "bfloat16", "int64", "Mean", "strided"),
    *("contiguous_format", "float", "long", "default", "__x", "in", "is", "def", "a", "b", "x"),
    *("(", ")", "[", "]", "?", "!", "*", "|", "->", "...", ",", "=", "-", ".", "::", ":", "[]"),
    *("[2]", "(a!)", "(a)", "(a -> b)", "(a|b)", "(*)", ", *", ", ...", "# c", "\n", "\\\n"),
    *("1", "0", "2", "1.5", "1e-5", ".5", "5.", "1j", "0x10", '"a"', "'b'", '""', "[1, 2]"),
    *("=None", "=1", "=[1, 2]", '="cpu"', "=True", "=float"),
]
_TOKEN = re.compile(r"[A-Za-z_]\w*|\d+\.?\d*|->|\.\.\.|\s+|.", re.DOTALL)

TYPES = [
    *("Tensor", "int", "float", "bool", "str", "Scalar", "ScalarType", "Device", "Layout"),
    *("MemoryFormat", "Generator", "SymInt", "complex", "Any", "t", "NoneType", "None", "QScheme"),
    *("Stream", "SymBool", "Quantizer"),
]
ALIASES = ["", "", "", "", "", "(a)", "(a!)", "(b! -> c)", "!", "(*)", "(a -> *)", "(a|b)", "(*|)"]
DEFAULTS = [
    *("1", "-1", "0", "1.5", "-2.", ".5", "1e5", "1E5", "1e-7", "0x1F", "0x1.8p1", "1j", "2.5j"),
    *("-3j", "15", "True", "False", "None", '"a"', "'b c'", '"\\n"', "float", "long", "complex"),
    *("strided", "Mean", "contiguous_format", "int64", "bool", "half", "[]", "[1]", "[1, 1]"),
    *("[1, 2, 3]", "[1.5, 2]", "[True]", "[True, False]", "[1j]", "[float]", '"cpu"', '"cuda:1"'),
    *("1e400", "9223372036854775808", "12345678901234567890.5", "1e-320", "-0.0", "inf", "- 1"),
    *('"""x"""', '"\\101"', '"é"', "1_0", "[None]", "0.1", "1e22", "123456789012"),
]


def with_sorted_alias_sets(text: str) -> str:
    """The text with each ``(b|a)`` in order: PyTorch prints them in that of a hash table."""
    return re.sub(r"\w+(\|\w+)+", lambda sets: "|".join(sorted(sets.group().split("|"))), text)


def mutate(rng: random.Random, text: str) -> str:
    """The text with one to three characters or words removed, added, replaced or swapped."""
    for _ in range(rng.choice([1, 1, 1, 1, 1, 2, 3])):
        parts = list(text) if rng.random() < 0.5 else _TOKEN.findall(text)
        pool = CHARACTERS if len(parts) == len(text) else WORDS
        here, there = rng.randrange(len(parts)), rng.randrange(len(parts))
        match rng.randrange(5):
            case 0 if len(parts) > 1:
                del parts[here]
            case 1:
                parts.insert(here, rng.choice(pool))
            case 2:
                parts[here] = rng.choice(pool)
            case 3:
                parts[here], parts[there] = parts[there], parts[here]
            case _:
                parts.insert(here, parts[there])
        text = "".join(parts)
    return text


def random_type(rng: random.Random, depth: int = 0) -> str:
    """A type, right or wrong, at most three brackets deep."""
    inner = [random_type(rng, depth + 1) for _ in range(rng.randrange(4))] if depth < 3 else []
    kind = rng.random()
    text = rng.choice(TYPES)
    if inner and kind < 0.3:
        word = rng.choice(["", "Dict", "Future", "RRef", "Await", "Union"])
        text = f"{word}({', '.join(inner)})"
    text += rng.choice(ALIASES)
    for _ in range(rng.choice([0, 0, 0, 1, 1, 2])):
        text += "?" if rng.random() < 0.4 else f"[]{rng.choice(ALIASES)}"
    if depth == 0 and rng.random() < 0.15:
        size = rng.choice(["2", "3", "0", "1", "2.5", "0x2", "1e1"])
        text += f"[{size}]{rng.choice(ALIASES)}{rng.choice(['', '?'])}"
    return text


def random_schema(rng: random.Random) -> str:
    """A schema of up to three arguments, more often wrong than right."""
    arguments = []
    for place in range(rng.randrange(1, 4)):
        default = f"={rng.choice(DEFAULTS)}" if rng.random() < 0.6 else ""
        arguments.append(f"{random_type(rng)} x{place}{default}")
        if rng.random() < 0.15:
            arguments.append("*")
    if rng.random() < 0.05:
        arguments.append("...")
    types = [random_type(rng) for _ in range(2)]
    returns = rng.choice(["()", "Tensor", types[0], f"({types[0]}, {types[1]} a)", "(t a, ...)"])
    text = f"f({', '.join(arguments)}) -> {returns}"
    return mutate(rng, text) if rng.random() < 0.2 else text


def _typed(*types: str) -> list[str]:
    return [f"f({type_} x) -> {type_}" for type_ in types]


def _with_defaults(*types: str) -> list[str]:
    return [f"f({type_} x={default}) -> ()" for type_ in types for default in DEFAULTS]


PROBES = [
    # Types.
    *_typed(*TYPES, "Storage", "Capsule", "AnyEnumType", "DeviceIndex", "ConstQuantizerPtr"),
    *_typed("foo", "double", "Number", "Future", "Tuple", "PyObject", "SymFloat", "a.b", "int.x"),
    *_typed("Tensor.x", "a . b.c", "a.", "a.in", "Foo.bar", "None.x", "Any.x", "_a"),
    *_typed("Future(int)", "RRef(Tensor)", "Await(t)", "Future(ScalarType[])", "Dict(str, SymInt)"),
    *_typed("Dict(Any, int)", "Dict(t, t)", "Dict(str)", "Dict(int?, int)", "Dict(int[], int)"),
    *_typed("Union(int, str)", "Union(str,int)", "Union(int)", "Union(int, int)", "Union()"),
    *_typed("Union(int, None)", "Union(int?, str)", "Union(int, bool, float)", "Union(Any, int)"),
    *_typed(
        "Union(int, float, complex)", "Union(Scalar, int)", "Union(int, str)?", "Union(t, int)"
    ),
    *_typed("int??", "int?[]?", "int[]??", "None?", "Any?", "Scalar?", "Scalar??", "(int)", "()"),
    *_typed("(int, str)", "((int, (str, t))[])", "(int,)", "(ScalarType, SymBool)", "(Tensor(a))"),
    *_typed("int[][]", "int[2][]", "int[][2]", "int[2][2]", "int[2]?", "int[2]?[]", "int[2]??"),
    *_typed("int[ 2 ]", "int [2]", "int[2.7]", "int[0x10]", "int[1e3]", "int[-1]", "int[.5]"),
    *_typed("int[1j]", "int[01]", "int[99999999999999999999]", "int[2", "int[]]"),
    # Alias annotations.
    *_typed("Tensor(a)", "Tensor(a!)", "Tensor!", "Tensor![]", "Tensor(a!)[]", "Tensor(a)[](b!)"),
    *_typed("Tensor[](b)", "Tensor(a)[2](b)", "Tensor(a!)[]?", "Tensor?(a!)", "Tensor(a!)?"),
    *_typed("Tensor(a!)?[]", "Tensor(a!)[][]", "Tensor(a)[](b)[](c)", "Tensor(a|a)", "Tensor(*)"),
    *_typed("Tensor(*!)", "Tensor(*|a)", "Tensor(a|*)", "Tensor(a|*|b)", "Tensor(a -> b)"),
    *_typed("Tensor(a -> *)", "Tensor(a! -> a)", "Tensor()", "Tensor(!)", "Tensor(a b)"),
    *_typed("Tensor(a!!)", "Tensor(a->)", "Tensor(A)", "Tensor(a_1)", "Tensor(a)(b)", "Tensor(in)"),
    *_typed("int(a!)", "t(a)[]", "Dict(int,str)(a!)", "Future(int)(a)", "(int,str)(a)", "Tensor!!"),
    # Defaults.
    *_with_defaults(
        "int", "float", "bool", "str", "complex", "Scalar", "ScalarType", "ScalarType?"
    ),
    *_with_defaults("int?", "Tensor", "Tensor?", "Device", "Device?", "Layout", "MemoryFormat?"),
    *_with_defaults("int[]", "int[2]", "int[2]?", "float[]", "float[2]", "bool[3]", "complex[2]"),
    *_with_defaults(
        "str[]", "Tensor[]", "SymInt[2]", "ScalarType[]", "int?[]", "int[0]", "t", "Any"
    ),
    *[f'f(Device x="{d}") -> ()' for d in ("cuda:01", "cuda:", "", "meta", "CPU", "gpu", "mps:0")],
    *[
        f"f(str x={s}) -> ()"
        for s in (r'"\x41"', r'"\9"', r'"\12"', r'"\1234"', r'"\777"', r'"\000"')
    ],
    *[f"f(str x={s}) -> ()" for s in (r'"a\"b"', r"'\''", "'''a''", '""a""', '"a" "b"', "'a'b'")],
    *[f"f(str x={s}) -> ()" for s in ('"a\nb"', '"""a\nb"""', '"\\\n"', '"\t"', '"\x7f"', '"#"')],
    # Names, brackets, order.
    *(
        "f",
        "f()",
        "f() -> ",
        "f() -> ()",
        "f -> int",
        "() -> int",
        "f() -> int, int",
        "f() -> (int)",
    ),
    *("f() -> (int, int)", "f() -> ((int, int))", "f() -> (int a, int b)", "f() -> int a", ""),
    *("f() -> ...", "f() -> (...)", "f() -> (int, ...)", "f() -> (..., int)", "f() -> (int)[]"),
    *("f() -> ((int,str)[])", "f() -> (())", "f() -> int[2]", "f() -> int=1", "f() -> int x y"),
    *("a::f() -> ()", "a::b::f() -> ()", "a:f() -> ()", "a : : f() -> ()", "::f() -> ()"),
    *("a::f.o() -> ()", "f.() -> ()", "f.1() -> ()", "f.default() -> ()", "f.__x() -> ()"),
    *(
        "f._x() -> ()",
        "f . o () -> ()",
        "f.o.p() -> ()",
        "1f() -> ()",
        "in() -> ()",
        "f.in() -> ()",
    ),
    *("f(*) -> ()", "f(*, *) -> ()", "f(*, int x, *, int y) -> ()", "f(int x, *) -> ()"),
    *("f(...) -> ()", "f(int x, ...) -> ()", "f(..., int x) -> ()", "f(*, ...) -> ()"),
    *("f(int x=1, ...) -> ()", "f(int x,) -> ()", "f(,) -> ()", "f(int x int y) -> ()"),
    *("f(int) -> ()", "f(int x, int x) -> ()", "f(int x=1, int y) -> ()", "f(int if) -> ()"),
    *("f(int x=1, *, int y) -> ()", "f(int x=1, int[] y) -> ()", "f(int x=1, int[]? y) -> ()"),
    *("f(int is_x) -> ()", "f(int from) -> ()", "f(int Tensor) -> ()", "f(int NoneTypeX) -> ()"),
    # Blanks, lines, comments.
    *("f(int x)->()", "f(int x) - > ()", "  f(int x) -> ()  ", "\n\n  f(int x) -> ()\n \n"),
    *("f(int x) ->\n()", "f(\nint\nx\n) -> ()", "f\n(int x) -> ()", "f(int x)\n -> ()"),
    *(
        "f(int x) -> (\n)",
        "f() -> ()\n g",
        "f() -> ()\nf() -> ()",
        "f() -> () # c",
        "# c\nf() -> ()",
    ),
    *(
        "f(int x # c\n) -> ()",
        "f() -> () # type: int",
        "f() \\\n -> ()",
        "\\\nf() -> ()",
        "\\f() -> ()",
    ),
    *("f(int\tx) -> ()", "f(int\rx) -> ()", "f(int\x0bx) -> ()", "f(int\x00x) -> ()", "f() -> ();"),
    *("f(int é) -> ()", "@f() -> ()", "f() -> $x", "f(", "f(int", "f)", "f() -> (int", "#", "\n"),
]

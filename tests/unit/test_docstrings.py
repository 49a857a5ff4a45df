"""Docstrings begin as a reader of PyTorch, gRPC and asyncio expects: with what a caller gets.

Ruff's D401 asks for the imperative mood. It knows a list of verbs and passes many other words, so
the rest of the rule is here:

- no docstring, of an attribute as little as of a module, begins with a question word for its
  subject ("What it holds");
- that of a function begins with a verb ("Return whether ..."), not with "Whether", "How" or "Of".
  Properties are attributes for their readers: they name a value.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.import_graph import parse, statements_in

ROOT = Path(__file__).parents[2]
PRODUCT = ("client", "dispatcher", "examples", "proto", "server", "stress")

WITHOUT_SUBJECT = frozenset(
    ("What", "Whatever", "Who", "Whoever", "Whose", "Nobody", "Somebody", "Everybody")
)
# First words of functions that are no verbs, and that D401 passes.
NO_VERBS = frozenset(
    (
        *("All", "Also", "Another", "As", "At", "By", "Each", "Every", "For", "From", "How", "If"),
        *("In", "It", "Its", "No", "None", "Nothing", "Of", "One", "Only", "Over", "So", "That"),
        *("These", "This", "Those", "Until", "When", "Where", "Whether", "Which", "While", "Why"),
        *("With", "Within", "Without"),
    )
)
# Verbs that are no plural nouns in our docstrings, as "Records" and "Times" are.
THIRD_PERSON = re.compile(
    "(Begin|Call|Check|Close|Connect|Define|End|Ha|Kill|Load|Make|Open|Print|Put|Raise|Read|Register"
    "|Return|Run|Say|Send|Serve|Start|Stop|Take|Tell|Wait|Write)s"
)
# People in the place of calls, threads and processes, and words that the field has others for.
# In names, too: underscores count as spaces.
UNIDIOMATIC = re.compile(
    r"(?<![A-Za-z])(nobody|somebody|whoever|ways?[ _]back|(is|are)[ _]told)(?![A-Za-z])", re.I
)


def python_files(folder: str) -> list[Path]:
    """Return the files of a folder that are not generated from protos."""
    return [
        path
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "v1" not in path.parts
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
    ]


def docstrings(tree: ast.Module) -> Iterator[tuple[ast.AST, int, str]]:
    """Yield node, line and text of each docstring; of attributes, the node is the assignment."""
    for node in statements_in(tree):
        body = getattr(node, "body", None)
        before: ast.AST | None = node
        for statement in body if isinstance(body, list) else []:
            if (
                isinstance(statement, ast.Expr)
                and isinstance(statement.value, ast.Constant)
                and isinstance(statement.value.value, str)
                and isinstance(
                    before,
                    ast.Module
                    | ast.ClassDef
                    | ast.FunctionDef
                    | ast.AsyncFunctionDef
                    | ast.Assign
                    | ast.AnnAssign,
                )
            ):
                yield before, statement.lineno, statement.value.value
            before = statement if isinstance(statement, ast.Assign | ast.AnnAssign) else None


def is_property(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Return whether the function is a property of any kind."""
    return any("property" in ast.unparse(each) for each in function.decorator_list)


def find_unidiomatic(text: str) -> list[str]:
    """Return ``"line: word"`` for each docstring that begins with a word from the lists."""
    found = []
    for node, line, docstring in docstrings(parse(text)):
        word = (docstring.split() or [""])[0].strip(",.:;")
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if (
            word.removesuffix("'s") in WITHOUT_SUBJECT
            or (is_function and THIRD_PERSON.fullmatch(word))
            or (is_function and word in NO_VERBS and not is_property(node))
        ):
            found.append(f"{line}: {word}")
    return found


@pytest.mark.parametrize("folder", PRODUCT)
def test_docstrings_begin_with_an_imperative_in(folder: str):
    found = [
        f"{path.relative_to(ROOT)}:{each}"
        for path in python_files(folder)
        for each in find_unidiomatic(path.read_text())
    ]
    assert found == []


def test_docstrings_of_tests_have_a_subject():
    found = [
        f"{path.relative_to(ROOT)}:{line}"
        for path in python_files("tests")
        for _, line, docstring in docstrings(parse(path.read_text()))
        if (docstring.split() or [""])[0] in WITHOUT_SUBJECT
    ]
    assert found == []


def test_texts_and_names_use_the_words_of_the_field():
    texts = [
        *(path for folder in (*PRODUCT, "tests", "docs") for path in python_files(folder)),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "newsfragments").glob("*.md"),
        *(ROOT / "proto").rglob("*.proto"),
        *ROOT.glob("*.md"),
    ]
    assert len(texts) > 1000
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts
        if path != Path(__file__)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNIDIOMATIC.search(line) and "nobody asks them why" not in line  # a prompt
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('def f():\n    """Return a list."""', []),
        ('def f():\n    """Returns a list."""', ["2: Returns"]),
        ('def f():\n    """Whether it is one."""', ["2: Whether"]),
        ('@property\ndef f(self):\n    """Whether it is one."""', []),
        ('async def f():\n    """What it makes."""', ["2: What"]),
        ('"""What is here."""', ["1: What"]),
        ('x = 1\n"""What it is."""', ["2: What"]),
        ('class C:\n    """Nobody\'s."""', ["2: Nobody's"]),
        (
            'class C:\n    """Whoever calls."""\n    def f(self):\n        """Runs."""',
            ["2: Whoever", "4: Runs"],
        ),
    ],
)
def test_planted_docstrings_are_found(text: str, found: list[str]):
    assert sorted(find_unidiomatic(text)) == found


@pytest.mark.parametrize(
    ("text", "is_found"),
    [
        ("Nobody waits", True),
        ("def test_nobody_waits", True),
        ("the callback is told", True),
        ("test_it_is_told_why", True),
        ("the way back leads", True),
        ("a retold story, and Whoeverton", False),
        ("always backwards", False),
    ],
)
def test_planted_words_are_found(text: str, is_found: bool):
    assert bool(UNIDIOMATIC.search(text)) is is_found

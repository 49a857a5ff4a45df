"""Docstrings begin as a reader of PyTorch, gRPC and asyncio expects: with what a caller gets."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("client", "dispatcher", "examples", "proto", "server", "stress", "tests")

WITHOUT_SUBJECT = frozenset(("What", "Whatever", "Whoever", "Nobody", "Somebody"))
# Verbs that are no plural nouns in our docstrings, as "Records" and "Times" are.
THIRD_PERSON = re.compile(
    "(Begin|Call|Check|Close|Connect|Define|End|Ha|Kill|Load|Make|Open|Print|Put|Raise|Read|Register"
    "|Return|Run|Say|Send|Serve|Start|Stop|Take|Tell|Wait|Write)s"
)


def statements_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes of a tree but for expressions, of which there are ten times as many."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements_in(node)


def opening_words(text: str) -> Iterator[tuple[int, str, bool]]:
    """Yield line and first word of each docstring, and whether it is a function's."""
    for node in statements_in(ast.parse(text)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        words = (ast.get_docstring(node) or "").split()
        if words:
            yield node.lineno, words[0].strip(",.:;"), not isinstance(node, ast.ClassDef)


def find_unidiomatic(text: str) -> list[str]:
    """Return ``"line: word"`` for each docstring that begins with a word from the lists."""
    return [
        f"{line}: {word}"
        for line, word, is_function in opening_words(text)
        if word in WITHOUT_SUBJECT or (is_function and THIRD_PERSON.fullmatch(word))
    ]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_an_imperative_in(folder: str):
    found = [
        f"{path.relative_to(ROOT)}:{each}"
        for path in sorted((ROOT / folder).rglob("*.py"))
        if "v1" not in path.parts
        and not any(part.startswith(".") for part in path.relative_to(ROOT).parts)
        for each in find_unidiomatic(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('def f():\n    """Return a list."""', []),
        ('def f():\n    """Returns a list."""', ["1: Returns"]),
        ('async def f():\n    """What it makes."""', ["1: What"]),
        ('class C:\n    """Nobody\'s."""', []),
        (
            'class C:\n    """Whoever calls."""\n    def f(self):\n        """Runs."""',
            ["1: Whoever", "3: Runs"],
        ),
    ],
)
def test_planted_docstrings_are_found(text: str, found: list[str]):
    assert sorted(find_unidiomatic(text)) == found

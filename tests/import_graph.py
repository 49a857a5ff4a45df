"""Every import that a source makes: at load, in functions, for type checkers, and by strings.

An import by a string is one that a dotted name of a known module stands for, wherever it stands:
``import_module("opdispatch.func")``, ``sys.modules["opdispatch.func"]``, a constant for either.
"""

import ast
import gc
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from typing import Literal, NamedTuple

Kind = Literal["load", "function", "type", "string"]
_WITHOUT_PARTS = (ast.Name, ast.expr_context, ast.operator, ast.unaryop, ast.boolop, ast.cmpop)


class Import(NamedTuple):
    """One import: ``line`` is that of its statement."""

    source: str
    target: str
    kind: Kind
    line: int

    def __str__(self) -> str:
        return f"{self.source}:{self.line} imports {self.target} ({self.kind})"


def parse(text: str) -> ast.Module:
    """Return the syntax tree of a source text, without looking for garbage among what is made.

    That would take twice as long as all the rest: a tree is many objects, which all stay.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(text)
    finally:
        if enabled:
            gc.enable()


def imports_in(source: str, tree: ast.AST, known: Container[str]) -> Iterator[Import]:
    """Yield the imports of a module: of ``known`` ones by their whole names, of others as written.

    Raises AssertionError for a relative import.
    """
    waiting: list[tuple[ast.AST, Kind]] = [(tree, "load")]
    while waiting:
        node, kind = waiting.pop()
        for name, found in _named_by(node, known, kind):
            if name != source:
                yield Import(source, name, found, getattr(node, "lineno", 0))
        if isinstance(node, ast.Call) and _last_name(node.func) == "getLogger":
            continue  # a logger has the name of a module, and imports none
        inside: Kind = kind
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            inside = "type" if kind == "type" else "function"
        parts = [(part, inside) for part in _parts_of(node)]
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            parts = [(part, "type") for part in node.body] + [(part, kind) for part in node.orelse]
        waiting += reversed(parts)


def statements_in(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield a module and its statements in order, and what they consist of but for expressions."""
    waiting = [tree]
    while waiting:
        yield (node := waiting.pop())
        for field in ("finalbody", "orelse", "cases", "handlers", "body"):
            if isinstance(part := getattr(node, field, None), list):
                waiting += reversed(part)


def _parts_of(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes in a node in which an import can be: no names, and no operators."""
    for field in node._fields:
        value = getattr(node, field)
        for part in value if isinstance(value, list) else (value,):
            if isinstance(part, ast.AST) and not isinstance(part, _WITHOUT_PARTS):
                yield part


def _named_by(node: ast.AST, known: Container[str], kind: Kind) -> Iterator[tuple[str, Kind]]:
    if isinstance(node, ast.Import):
        yield from ((alias.name, kind) for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, "imports are absolute"
        module = node.module or ""
        inner = {name for a in node.names if (name := f"{module}.{a.name}") in known}
        yield from ((name, kind) for name in sorted(inner))
        if len(inner) < len(node.names):  # what is no module is a name of the package
            yield module, kind
    elif isinstance(node, ast.Constant) and _is_dotted(node.value) and node.value in known:
        yield node.value, "string"
    elif isinstance(node, ast.JoinedStr):
        # ``f"opdispatch.{name}"``: some module of that package, so that its face is imported.
        name, dot, rest = _beginning_of(node).rpartition(".")
        if dot and not rest and name in known:
            yield name, "string"


def _beginning_of(text: ast.JoinedStr) -> str:
    first = text.values[0] if text.values else None
    return str(first.value) if isinstance(first, ast.Constant) else ""


def _last_name(node: ast.expr) -> str:
    """Return ``c`` of ``a.b.c``, and of ``c``."""
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _is_dotted(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"\w+(\.\w+)+", value) is not None


def circles_of(graph: Mapping[str, Iterable[str]]) -> list[list[str]]:
    """Return the strongly connected components of more than one node, sorted: Tarjan's way."""
    numbers: dict[str, int] = {}
    lowest: dict[str, int] = {}
    waiting: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        numbers[node] = lowest[node] = len(numbers)
        waiting.append(node)
        for other in graph.get(node, ()):
            if other not in numbers:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in waiting:
                lowest[node] = min(lowest[node], numbers[other])
        if lowest[node] == numbers[node]:
            place = waiting.index(node)
            component = waiting[place:]
            del waiting[place:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in numbers:
            visit(node)
    return sorted(found)


def circles_in(imports: Iterable[Import], room_of: Callable[[str], str]) -> list[list[str]]:
    """Return the circles of rooms: of files, where each is a room of its own."""
    graph: dict[str, set[str]] = defaultdict(set)
    for each in imports:
        source, target = room_of(each.source), room_of(each.target)
        if source != target:
            graph[source].add(target)
    return circles_of(graph)

"""Conversion of graphs to and from JSON, without the elements of constants.

Lists, text, numbers, true, false and null stand for themselves. What JSON has not is an object with
one key: ``{"value": ["node", 3, 0]}`` is item 0 of what node 3 returns, ``{"dtype": "float32"}`` a
dtype, ``{"tensor": [dtype, shape, device, layout]}`` what a tensor was in the trace.
"""

from __future__ import annotations

import inspect
import keyword
import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from opdispatch.errors import GraphError, OpdispatchError
from opdispatch.schema.function_schema import FunctionSchema, OperatorName
from opdispatch.schema.parser import parse_schema
from opdispatch.schema.scalar_type import find_dtype_of_name
from opdispatch.tracing.graph import Graph
from opdispatch.tracing.node import (
    Constant,
    Input,
    Node,
    Parameter,
    Source,
    TensorFacts,
    Value,
    values_in,
)
from opdispatch.tracing.pytree import leaves
from opdispatch.tracing.unique_names import RESERVED

FORMAT, VERSION = "opdispatch graph", 1
_MOST_LEVELS = 32

ReadConstant = Callable[[int, dict[str, Any]], Constant]
"""Makes a constant of its number, and of what is said about it."""


def graph_to_json(graph: Graph, constants: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the document; ``constants`` are their descriptions. Raises GraphError."""
    schemas = {node.operator: node.schema for node in graph.nodes}
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": graph.name,
        "parameters": [
            {
                "name": each.name,
                "kind": each.kind.name,
                "given": _tree_to_json(each.given, f"the parameter {each.name!r}"),
            }
            for each in graph.parameters
        ],
        "inputs": [{"name": each.name, **_facts_to_json(each.facts)} for each in graph.inputs],
        "constants": constants,
        "operators": {
            name: None if schema is None else str(schema) for name, schema in schemas.items()
        },
        "nodes": [_node_to_json(node) for node in graph.nodes],
        "outputs": _tree_to_json(graph.outputs, "an output"),
    }


def _node_to_json(node: Node) -> dict[str, Any]:
    where = f"an argument of {node.name} ({node.operator})"
    return {
        "name": node.name,
        "operator": node.operator,
        "args": [_tree_to_json(each, where) for each in node.args],
        "kwargs": {name: _tree_to_json(each, where) for name, each in node.kwargs.items()},
        "returns": _tree_to_json(node.returns, f"what {node.name} ({node.operator}) returned"),
        "shares_memory": node.shares_memory,
    }


def _facts_to_json(facts: TensorFacts) -> dict[str, Any]:
    return {"tensor": [facts.dtype, list(facts.shape), facts.device, facts.layout]}


def _tree_to_json(tree: Any, where: str) -> Any:
    match tree:
        case None | bool() | str():
            return tree
        case np.generic():
            return _tree_to_json(tree.item(), where)
        case int():
            return int(tree)
        case float():
            return float(tree) if math.isfinite(tree) else {"float": str(float(tree))}
        case complex():
            return {"complex": [_tree_to_json(part, where) for part in (tree.real, tree.imag)]}
        case list():
            return [_tree_to_json(each, where) for each in tree]
        case tuple():
            return {"tuple": [_tree_to_json(each, where) for each in tree]}
        case dict():
            pairs = tree.items()
            return {"dict": [[_tree_to_json(p, where) for p in pair] for pair in pairs]}
        case Value():
            return {"value": [str(tree.source), tree.number, *tree.items]}
        case TensorFacts():
            return _facts_to_json(tree)
        case np.dtype() if find_dtype_of_name(tree.name) == tree:
            return {"dtype": tree.name}
    raise GraphError(f"{where} is of type {type(tree).__qualname__}, which no file can have")


def graph_from_json(document: Any, constant: ReadConstant) -> Graph:
    """Return the graph of a document. Raises GraphError for an invalid document."""
    return _Reader(document).graph(constant)


class _Reader:
    """Reader of one document, which validates everything in it."""

    def __init__(self, document: Any) -> None:
        self._document = self._dict(document, "$")
        self._names: set[str] = set(RESERVED)
        self._inputs: list[Input] = []
        self._constants: list[Constant] = []
        self._nodes: list[Node] = []
        kind, version = self._document.get("format"), self._document.get("version")
        if kind != FORMAT:
            raise _refusal("$.format", f"is {_shown(kind)}; expected {FORMAT!r}")
        if version != VERSION:
            raise _refusal("$.version", f"is {_shown(version)}; this version reads {VERSION}")

    def graph(self, constant: ReadConstant) -> Graph:
        """Parse the whole graph, in an order in which values are known before they are used."""
        for n, each in enumerate(self._list(self._get("inputs"), "$.inputs")):
            at = f"$.inputs[{n}]"
            facts = self._tree(self._get("tensor", each, at), at, key="tensor")
            self._inputs.append(Input(self._name(each, at), facts))
        for n, each in enumerate(self._list(self._get("constants"), "$.constants")):
            self._name(each, f"$.constants[{n}]")
            self._constants.append(constant(n, each))
        schemas = self._schemas()
        for n, each in enumerate(self._list(self._get("nodes"), "$.nodes")):
            self._nodes.append(self._node(each, schemas, f"$.nodes[{n}]"))
        name = self._identifier(self._document, "$")
        graph = Graph(
            name=name,
            parameters=self._parameters(),
            inputs=tuple(self._inputs),
            constants=tuple(self._constants),
            nodes=tuple(self._nodes),
            outputs=self._given(self._get("outputs"), "$.outputs"),
        )
        try:
            graph.signature  # noqa: B018 - it can be made
        except ValueError as error:
            raise _refusal("$.parameters", f"are none of a function: {error}") from None
        return graph

    def _parameters(self) -> tuple[Parameter, ...]:
        parameters = []
        for n, each in enumerate(self._list(self._get("parameters"), "$.parameters")):
            at = f"$.parameters[{n}]"
            kind = inspect._ParameterKind.__members__.get(str(self._get("kind", each, at)))
            if kind is None:
                raise _refusal(at, "is of no kind that parameters are of")
            given = self._given(self._get("given", each, at), f"{at}.given")
            self._check_given(given, kind, at)
            parameters.append(Parameter(self._identifier(each, at), kind, given))
        found = [v for each in parameters for v in values_in(each.given)]
        if sorted(v.number for v in found) != list(range(len(self._inputs))) or any(
            v.source is not Source.INPUT or v.items for v in found
        ):
            raise _refusal("$.parameters", "do not have each input once, and nothing else")
        return tuple(parameters)

    def _check_given(self, given: Any, kind: inspect._ParameterKind, at: str) -> None:
        if (kind is inspect.Parameter.VAR_POSITIONAL and not isinstance(given, list | tuple)) or (
            kind is inspect.Parameter.VAR_KEYWORD and not isinstance(given, dict)
        ):
            raise _refusal(at, f"is of kind {kind.name} and has {type(given).__name__}")

    def _schemas(self) -> dict[str, FunctionSchema | None]:
        schemas: dict[str, FunctionSchema | None] = {}
        for name, text in self._dict(self._get("operators"), "$.operators").items():
            at = f"$.operators[{_shown(name)}]"
            try:
                parsed = OperatorName.parse(name)
                schemas[name] = None if text is None else parse_schema(self._text(text, at))
            except OpdispatchError as error:
                if isinstance(error, GraphError):
                    raise
                raise _refusal(at, f"does not parse: {error}") from None
            schema = schemas[name]
            if not parsed.namespace or (schema is not None and schema.name != parsed):
                raise _refusal(at, "is no operator in a namespace, or the schema of another one")
        return schemas

    def _node(self, message: Any, schemas: Mapping[str, FunctionSchema | None], at: str) -> Node:
        operator = self._text(self._get("operator", message, at), f"{at}.operator")
        if operator not in schemas:
            raise _refusal(f"{at}.operator", f"is {_shown(operator)}, which is not in $.operators")
        args = self._list(self._get("args", message, at), f"{at}.args")
        kwargs = self._dict(self._get("kwargs", message, at), f"{at}.kwargs")
        returns = self._tree(self._get("returns", message, at), f"{at}.returns")
        if any(values_in(returns)):
            raise _refusal(f"{at}.returns", "has a value; expected what a tensor was")
        return Node(
            self._name(message, at),
            operator,
            tuple(self._given(each, f"{at}.args[{n}]") for n, each in enumerate(args)),
            {k: self._given(each, f"{at}.kwargs[{_shown(k)}]") for k, each in kwargs.items()},
            returns,
            schemas[operator],
            self._get("shares_memory", message, at) is True,
        )

    # -- trees ------------------------------------------------------------------------------------

    def _given(self, message: Any, at: str) -> Any:
        """Parse a tree of values, where a tensor may not be described."""
        tree = self._tree(message, at)
        if any(isinstance(each, TensorFacts) for each in leaves(tree)):
            raise _refusal(at, "says what a tensor was; expected a value")
        return tree

    def _tree(self, message: Any, at: str, level: int = 0, *, key: str = "") -> Any:
        """Parse a tree; with ``key``, the value of an object with that key."""
        if level > _MOST_LEVELS:
            raise _refusal(at[:60] + "...", f"nests more than {_MOST_LEVELS} levels")
        if key:
            return self._special(key, message, at, level)
        if isinstance(message, list):
            return [self._tree(each, f"{at}[{n}]", level + 1) for n, each in enumerate(message)]
        if isinstance(message, dict):
            if len(message) != 1:
                raise _refusal(at, f"is an object with {len(message)} keys; expected one")
            [(key, content)] = message.items()
            return self._special(key, content, at, level)
        return message

    def _special(self, key: str, content: Any, at: str, level: int) -> Any:
        if key == "float" and content in ("nan", "inf", "-inf"):
            return float(content)
        if key == "dtype" and isinstance(content, str):
            if (dtype := find_dtype_of_name(content)) is not None:
                return dtype
            raise _refusal(at, f"has the dtype {_shown(content)}, which there is none of")
        if isinstance(content, list):
            match key:
                case "tuple":
                    return tuple(self._tree(content, at, level + 1))
                case "dict":
                    return self._pairs(content, at, level)
                case "complex" if len(content) == 2:
                    parts = [self._tree(each, at, level + 1) for each in content]
                    if all(isinstance(part, float) for part in parts):
                        return complex(*parts)
                case "value":
                    return self._value(content, at)
                case "tensor":
                    return self._facts(content, at)
        raise _refusal(at, f"has {_shown(key)} with {_shown(content)}, which means nothing")

    def _pairs(self, content: list[Any], at: str, level: int) -> dict[Any, Any]:
        found = {}
        for each in content:
            if not isinstance(each, list) or len(each) != 2:
                raise _refusal(at, "has a dict with an entry that is not a pair")
            key = self._tree(each[0], at, level + 1)
            if not isinstance(key, str | int | float | bool | None):
                raise _refusal(at, f"has a dict with a key of type {type(key).__name__}")
            found[key] = self._tree(each[1], at, level + 1)
        return found

    def _value(self, content: list[Any], at: str) -> Value:
        source, *numbers = content or [None]
        owners: dict[Any, list[Any]] = {
            "input": self._inputs,
            "constant": self._constants,
            "node": self._nodes,
        }
        owned = owners.get(source) if isinstance(source, str) else None
        if owned is None or not numbers or not all(type(n) is int and n >= 0 for n in numbers):
            raise _refusal(at, f"refers to {_shown(content)}; expected a source and numbers")
        number, *items = numbers
        if number >= len(owned):
            raise _refusal(
                at, f"refers to {source} {number}, which is not there yet; there are {len(owned)}"
            )
        facts = owned[number].returns if source == "node" else owned[number].facts
        for item in items:
            if not isinstance(facts, list | tuple) or item >= len(facts):
                raise _refusal(at, f"refers to {_shown(content)}, an item that is not there")
            facts = facts[item]
        return Value(Source(source), number, tuple(items))

    def _facts(self, content: list[Any], at: str) -> TensorFacts:
        match content:
            case [str(dtype), list(shape), str(device), str(layout)] if all(
                each is None or (type(each) is int and each >= 0) for each in shape
            ):
                return TensorFacts(dtype, tuple(shape), device, layout)
        raise _refusal(
            at, f"has a tensor of {_shown(content)}; expected dtype, shape, device and layout"
        )

    # -- parts ------------------------------------------------------------------------------------

    def _get(self, key: str, message: Any = None, at: str = "$") -> Any:
        message = self._document if at == "$" else self._dict(message, at)
        if key not in message:
            raise _refusal(at, f"has no {key!r}")
        return message[key]

    def _name(self, message: Any, at: str) -> str:
        """Parse the name of a value, which no other one has."""
        name = self._identifier(message, at)
        if name in self._names:
            raise _refusal(f"{at}.name", f"is {_shown(name)}, which something else is called")
        self._names.add(name)
        return name

    def _identifier(self, message: Any, at: str) -> str:
        name = self._text(self._get("name", message, at), f"{at}.name")
        if not name.isidentifier() or keyword.iskeyword(name):
            raise _refusal(f"{at}.name", f"is {_shown(name)}, and no identifier")
        return name

    def _text(self, message: Any, at: str) -> str:
        if not isinstance(message, str):
            raise _refusal(at, f"is not a string: {_shown(message)}")
        return message

    def _list(self, message: Any, at: str) -> list[Any]:
        if not isinstance(message, list):
            raise _refusal(at, f"is not a list: {_shown(message)}")
        return message

    def _dict(self, message: Any, at: str) -> dict[str, Any]:
        if not isinstance(message, dict):
            raise _refusal(at, f"is not an object: {_shown(message)}")
        return message


def _refusal(at: str, what: str) -> GraphError:
    return GraphError(f"the graph's {at} {what}")


def _shown(value: Any) -> str:
    text = repr(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return text if len(text) <= 60 else f"{text[:57]}..."

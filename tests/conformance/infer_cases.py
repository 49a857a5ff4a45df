"""Functions whose schema is inferred, written so that PyTorch's names and ours both fit."""

import collections.abc
import typing
from collections.abc import Callable
from typing import Any


def define(source: str, words: dict[str, Any]) -> Callable[..., Any]:
    """The function ``f`` of a source text in which the words have these meanings."""
    members = {**vars(typing), "abc": collections.abc, **words}
    exec(source, members)
    function: Callable[..., Any] = members["f"]
    return function


def _case(parameters: str, returns: str = " -> None", **options: Any) -> dict:
    source = f"def f({parameters}){returns}: ..."
    return {"source": source, "options": {"mutates_args": (), **options}}


ANNOTATIONS = [
    *("Tensor", "int", "float", "bool", "str", "dtype", "Union[int, float, bool]"),
    *("Optional[Tensor]", "Optional[int]", "Optional[float]", "Optional[bool]", "Optional[str]"),
    *("Optional[dtype]", "Optional[Union[int, float, bool]]", "Tensor | None", "int | None"),
    *("List[Tensor]", "list[Tensor]", "Sequence[Tensor]", "abc.Sequence[Tensor]", "list[int]"),
    *("List[Optional[Tensor]]", "list[Tensor | None]", "Sequence[float]", "list[bool]"),
    *("Optional[list[int]]", "Optional[Sequence[float]]", "List[bool] | None", "'Tensor'"),
    *("'list[Tensor]'", "list['Tensor']", "List['Tensor']", "'Optional[Tensor]'"),
    *("tuple[int, int]", "Tuple[Tensor, Tensor]", "object", "dict", "set[int]", "bytes"),
    *("device", "Optional[device]", "device | None", "'device'", "Optional['device']"),
    *("'Missing'", "list", "Callable", "'1 +'", "type", "list[list[list]]"),
]
RETURNS = [
    *("None", "Tensor", "int", "float", "bool", "list[Tensor]", "List[Tensor]", "'Tensor'"),
    *("tuple[Tensor, Tensor]", "Tuple[Tensor, int]", "tuple[float, bool, int]", "object"),
    *("Union[int, float, bool]", "tuple[Tensor, dict]", "'tuple[Tensor, Tensor]'", "dict"),
]
CASES = [
    *(_case(f"x: {annotation}") for annotation in ANNOTATIONS),
    *(_case("x: Tensor", f" -> {annotation}") for annotation in RETURNS),
    _case("x: Tensor", ""),
    _case("x"),
    _case(""),
    _case("x: Tensor, /"),
    _case("*x: Tensor"),
    _case("**x: Tensor"),
    _case("x: Tensor, *, y: int, z: float = 1.5"),
    _case("x: int = 3, y: float = 1e-05, z: bool = True, s: str = 'a b', n: Optional[int] = None"),
    _case("x: float = 2, y: Optional[float] = 2.5, d: Optional[dtype] = None, e: dtype = float32"),
    _case("x: device = 'cpu', y: Optional[device] = None, z: 'device' = 'cuda:1'"),
    _case("x: Tensor, *, where: device = 'meta', n: bool = False"),
    _case("x: device", " -> Tensor"),
    _case("x: int = b'a'"),
    _case("x: list[int] = {}"),
    _case("x: Tensor, y: Tensor", mutates_args=["x"]),
    _case("x: Tensor, y: Optional[Tensor], z: List[Tensor]", mutates_args=["y", "z"]),
    _case("x: Tensor, y: int, z: list[Tensor]", mutates_args="unknown"),
    _case("x: Tensor, y: int", mutates_args=["y"]),
    _case("x: Tensor", mutates_args=["y"]),
    _case("x: Tensor", mutates_args="x"),
    _case("x: Tensor, *, y: int = 1", " -> Tensor", op_name="ns::f"),
]

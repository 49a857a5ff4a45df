from __future__ import annotations

import functools
import sys
import typing
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Optional

import numpy as np
import pytest
from numpy.typing import NDArray

from opdispatch.errors import SchemaError
from opdispatch.library.infer_schema import infer_schema
from opdispatch.schema.parser import parse_schema
from opdispatch.tensors.tensor import Tensor

BOOL = np.dtype("bool")


def blur(x: np.ndarray, size: int = 3, *, sigma: float | None = None) -> np.ndarray: ...


def everything(
    a: Tensor,
    b: NDArray[np.float64],
    c: Optional[np.ndarray],  # noqa: UP045 - the old spelling counts too
    d: list[Tensor | None],
    e: tuple[int, ...],
    f: int | float | bool,
    g: complex,
    h: np.dtype,
    i: np.random.Generator | None,
    j: Annotated[str, "a note"],
    k: Sequence[Sequence[int]],
    l: typing.List[bool] | None,  # noqa: E741, UP006
    m: np.ndarray | Tensor,
) -> tuple[np.ndarray, float, list[Tensor]]: ...


def defaults(
    *,
    a: int = 1,
    b: float = 1e-5,
    c: bool = True,
    d: str = 'a "b"',
    e: np.dtype[Any] = np.float32,
    f: np.dtype[Any] | None = BOOL,
    g: list[int] = [1, 2],  # noqa: B006
    h: Sequence[float] = (0.5,),
    i: complex = 2j,
    j: str | None = None,
) -> None: ...


def test_a_function_becomes_a_schema():
    assert infer_schema(blur) == "(Tensor x, SymInt size=3, *, float? sigma=None) -> Tensor"
    assert infer_schema(blur, op_name="image::blur").startswith("image::blur(Tensor x, ")


def test_every_annotation_with_a_counterpart_is_known():
    assert infer_schema(everything) == (
        "(Tensor a, Tensor b, Tensor? c, Tensor?[] d, SymInt[] e, Scalar f, complex g, "
        "ScalarType h, Generator? i, str j, SymInt[][] k, bool[]? l, Tensor m)"
        " -> (Tensor, float, Tensor[])"
    )


def test_defaults_are_read_back_as_they_were():
    schema = parse_schema(infer_schema(defaults, op_name="f"))
    found = {argument.name: argument.default for argument in schema.arguments}
    assert found == {
        "a": 1,
        "b": 1e-5,
        "c": True,
        "d": 'a "b"',
        "e": np.dtype("float32"),
        "f": np.dtype("bool"),
        "g": (1, 2),
        "h": (0.5,),
        "i": 2j,
        "j": None,
    }


def test_written_arguments_get_alias_sets_of_their_own():
    def fill(x: Tensor, n: int, ys: list[Tensor], z: Tensor | None) -> None: ...

    assert infer_schema(fill, mutates_args=["x", "ys"]) == (
        "(Tensor(a0!) x, SymInt n, Tensor(a2!)[] ys, Tensor? z) -> ()"
    )
    assert infer_schema(fill, mutates_args="unknown") == (
        "(Tensor(a0!) x, SymInt n, Tensor(a2!)[] ys, Tensor(a3!)? z) -> ()"
    )


def test_wrapped_functions_and_callable_objects_are_read_too():
    @functools.wraps(blur)
    def wrapped(*args: Any, **kwargs: Any) -> Any: ...

    class Kernel:
        def __call__(self, x: Tensor) -> Tensor: ...

    assert infer_schema(wrapped) == infer_schema(blur)
    assert infer_schema(Kernel()) == "(Tensor x) -> Tensor"
    assert infer_schema(functools.partial(blur, size=5)).startswith("(Tensor x, *, SymInt size=5")


def _functions() -> list[tuple[Callable[..., Any], str]]:
    def without_annotation(x) -> None: ...
    def without_return(x: Tensor): ...
    def positional_only(x: Tensor, /) -> None: ...
    def variadic(*x: Tensor) -> None: ...
    def keywords(**x: Tensor) -> None: ...
    def unknown_class(x: set[int]) -> None: ...
    def mixed(x: int | str) -> None: ...
    def pair(x: tuple[int, str]) -> None: ...
    def wrong_default(x: int = 1.5) -> None: ...
    def tensor_default(x: Tensor = None) -> None: ...
    def infinite(x: float = float("inf")) -> None: ...
    def missing_name(x: Nowhere) -> None: ...  # noqa: F821
    def strings(x: list[str] = ["a"]) -> None: ...  # noqa: B006
    def reserved(x: Tensor, is_: int) -> object: ...
    def order(a: int = 1, *, b: str = "x") -> dict[str, int]: ...

    return [
        (without_annotation, "parameter 'x' has no annotation"),
        (without_return, "the return has no annotation"),
        (positional_only, "parameter 'x' is positional-only"),
        (variadic, "parameter 'x' is variadic positional"),
        (keywords, "parameter 'x' is variadic keyword"),
        (unknown_class, "parameter 'x' has the annotation set[int], which has no counterpart"),
        (mixed, "parameter 'x' has the annotation int | str; of unions, only"),
        (pair, "use list[X] instead of a tuple"),
        (wrong_default, "the default of parameter 'x' does not fit its type: expected SymInt"),
        (tensor_default, "annotate it as X | None"),
        (infinite, "expected a number"),
        (missing_name, "the annotation 'Nowhere' of parameter 'x' cannot be evaluated (NameError"),
        (strings, "a list of str can only have None"),
        (reserved, "the return has the annotation object, which has no counterpart"),
        (order, "the return has the annotation dict[str, int]"),
    ]


@pytest.mark.parametrize(
    ("function", "message"), _functions(), ids=lambda f: getattr(f, "__name__", "")
)
def test_inexpressible_signature_error_names_the_function(function, message):
    with pytest.raises(SchemaError) as caught:
        infer_schema(function)
    assert message in str(caught.value)
    assert function.__name__ in str(caught.value)


@pytest.mark.parametrize(
    ("mutates_args", "message"),
    [
        (["size"], "parameter 'size' is in mutates_args, but SymInt has no tensor to write to"),
        (["y", "z"], "mutates_args has 'y', 'z', which are not parameters of it"),
        ("x", "mutates_args must be a sequence of names or 'unknown', not the string 'x'"),
    ],
)
def test_mutates_args_must_name_tensors(mutates_args, message):
    with pytest.raises(SchemaError) as caught:
        infer_schema(blur, mutates_args=mutates_args)
    assert message in str(caught.value)


def add_(x: Tensor, y: Tensor) -> Tensor: ...
def split(x: Tensor, *, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]: ...
def parts(x: Tensor, *, out: list[Tensor]) -> list[Tensor]: ...
def one(x: Tensor, *, out: Tensor) -> Tensor: ...


@pytest.mark.parametrize(
    ("function", "mutates_args", "tags", "schema"),
    [
        (add_, ["x"], "inplace", "(Tensor(a0!) x, Tensor y) -> Tensor(a0!)"),
        (one, ["out"], ("core", "out"), "(Tensor x, *, Tensor(a1!) out) -> Tensor(a1!)"),
        (one, ["out"], None, "(Tensor x, *, Tensor(a1!) out) -> Tensor"),
        (
            *(split, ["b", "a"], ["out"]),
            "(Tensor x, *, Tensor(a1!) a, Tensor(a2!) b) -> (Tensor(a1!), Tensor(a2!))",
        ),
    ],
)
def test_a_tag_says_that_what_is_written_to_is_returned(function, mutates_args, tags, schema):
    assert infer_schema(function, mutates_args=mutates_args, tags=tags) == schema


@pytest.mark.parametrize(
    ("function", "mutates_args", "tags", "message"),
    [
        (add_, ["y"], "inplace", "not a Tensor that is written to"),
        (add_, [], "inplace", "with the tag 'inplace', it writes to a tensor"),
        (add_, "unknown", "inplace", "mutates_args is the first parameter"),
        (add_, ["x"], "out", "writes to 'x', which is not keyword-only"),
        (split, ["a"], "out", "it returns the tensors that it writes to, 'a', and its return is"),
        (parts, ["out"], "out", "and its return is Tensor[]"),
        (one, ["out"], ["out", "inplace"], "no operator has the tags 'out' and 'inplace'"),
    ],
)
def test_missing_requirement_of_a_tag_raises_schema_error(function, mutates_args, tags, message):
    with pytest.raises(SchemaError) as caught:
        infer_schema(function, mutates_args=mutates_args, tags=tags)
    assert message in str(caught.value)


def test_a_tuple_of_one_tensor_is_one():
    def f(x: Tensor) -> tuple[Tensor]: ...

    assert infer_schema(f) == "(Tensor x) -> ((Tensor))"


def test_a_parameter_with_a_reserved_name_is_an_error():
    namespace: dict[str, Any] = {}
    exec("def f(None_: int, Ellipsis: int) -> None: ...", namespace)
    with pytest.raises(SchemaError, match="reserved word"):
        infer_schema(namespace["f"])


@pytest.mark.skipif(sys.version_info < (3, 12), reason="type aliases are of Python 3.12")
def test_a_type_alias_stands_for_what_it_names():
    names: dict[str, object] = {}
    exec("type Picture = np.ndarray\ntype Many[T] = list[T]", {"np": np}, names)

    def f(x, xs):
        pass

    f.__annotations__ = {"x": names["Picture"], "xs": names["Many"][int], "return": np.ndarray}
    assert infer_schema(f) == "(Tensor x, SymInt[] xs) -> Tensor"

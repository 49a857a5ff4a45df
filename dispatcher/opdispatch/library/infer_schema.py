"""A schema from a Python function's annotations.

The counterpart of ``torch.library.infer_schema``, with NumPy's classes as well as our own Tensor.
It accepts a few more annotations than PyTorch's: complex, generators, and any nesting of optionals
and lists that the schema language can express.
"""

from __future__ import annotations

import collections.abc
import functools
import inspect
import numbers
import types
import typing
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import numpy as np

from opdispatch.arrays import find_backend, find_layout
from opdispatch.boxing.argument_conversion import converter_of
from opdispatch.errors import SchemaError
from opdispatch.schema.function_schema import AliasInfo, Argument
from opdispatch.schema.parser import parse_schema
from opdispatch.schema.scalar_type import CODE_OF_NAME
from opdispatch.schema.tag import tags_of
from opdispatch.schema.tag_checks import RETURNS_WRITTEN, checked_tags
from opdispatch.schema.types import (
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    GENERATOR,
    SCALAR,
    SCALAR_TYPE,
    STR,
    SYM_INT,
    TENSOR,
    ListType,
    OptionalType,
    SchemaType,
    optional_of,
)
from opdispatch.tensors.tensor import Tensor

Device = typing.NewType("Device", str)
Device.__doc__ = """As an annotation: an argument for the text of a device, such as ``"cuda:1"``."""

UNKNOWN: Final = "unknown"
"""A value of ``mutates_args``: every tensor argument may be written to."""

_NUMBERS = {int, float, complex, bool}
_LISTS = {list, collections.abc.Sequence}
_READABLE = (
    "numpy.ndarray, opdispatch.Tensor, int, float, complex, bool, str, numpy.dtype, Device, "
    "numpy.random.Generator, int | float | bool, and X | None, list[X] or Sequence[X] of these"
)


def infer_schema(
    fn: Callable[..., Any],
    /,
    *,
    mutates_args: str | Iterable[str] = (),
    op_name: str | None = None,
    tags: str | Sequence[str] | None = (),
) -> str:
    """Infer the schema of an operator whose kernel is ``fn`` from its annotations and defaults.

    ``mutates_args`` names the tensor arguments that the function writes to, or is ``"unknown"``:
    then it may write to all of them. Without ``op_name`` the text begins with the parenthesis. With
    the tag ``"inplace"`` or ``"out"`` in ``tags``, it returns what it writes to. An int becomes
    ``SymInt``, as in PyTorch. Raises SchemaError, which names the parameter.
    """
    signature = inspect.signature(fn)
    kind = _kind_of(fn, signature, tags or (), mutates_args)
    inference = _Inference(fn, signature, _mutated_names(fn, signature, mutates_args))
    parts: list[str] = []
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in parts:
            parts.append("*")
        parts.append(inference.argument_text(place, parameter))
    returns = inference.written_text(kind) if kind else inference.returns_text()
    text = f"({', '.join(parts)}) -> {returns}"
    try:
        checked_tags(parse_schema(f"f{text}", allow_typevars=False), kind)
    except SchemaError as error:
        raise inference.error(f"the schema would be {text!r}, but {error}") from None
    return text if op_name is None else f"{op_name}{text}"


def _kind_of(
    fn: Callable[..., Any],
    signature: inspect.Signature,
    tags: str | Sequence[str],
    mutates_args: str | Iterable[str],
) -> str:
    """Return the tag that determines the returns, "inplace" or "out"; "" if there is none."""
    kinds = [tag for tag in RETURNS_WRITTEN if tag in tags_of(tags)]
    if len(kinds) > 1:
        raise _error(fn, signature, "no operator has the tags 'out' and 'inplace'")
    if kinds == ["inplace"] and mutates_args == UNKNOWN:
        raise _error(fn, signature, "with the tag 'inplace', mutates_args is the first parameter")
    return kinds[0] if kinds else ""


def _mutated_names(
    fn: Callable[..., Any], signature: inspect.Signature, mutates_args: str | Iterable[str]
) -> frozenset[str] | None:
    """Return the names of the parameters that are written to; None means all tensors."""
    if mutates_args == UNKNOWN:
        return None
    if isinstance(mutates_args, str):
        raise _error(
            fn,
            signature,
            f"mutates_args must be a sequence of names or 'unknown', not the string "
            f"{mutates_args!r}",
        )
    names = frozenset(mutates_args)
    missing = sorted(names - set(signature.parameters))
    if missing:
        listed = ", ".join(map(repr, missing))
        raise _error(fn, signature, f"mutates_args has {listed}, which are not parameters of it")
    return names


def _error(fn: Callable[..., Any], signature: inspect.Signature, what: str) -> SchemaError:
    name = getattr(fn, "__qualname__", repr(fn))
    return SchemaError(f"cannot infer a schema from {name}{signature}: {what}", function=name)


class _Inference:
    """Translates the annotations of one function to a schema."""

    def __init__(
        self,
        fn: Callable[..., Any],
        signature: inspect.Signature,
        mutated: frozenset[str] | None,
    ) -> None:
        self._fn = fn
        self._signature = signature
        self._mutated = mutated
        # The arguments that it writes to, in the order of the calls of ``argument_text``.
        self._written: dict[str, AliasInfo] = {}
        owner: Any = inspect.unwrap(fn)
        if not hasattr(owner, "__globals__"):  # an object with a __call__, or a partial
            owner = getattr(owner, "func", type(owner).__call__)
        self._globals: dict[str, Any] = getattr(owner, "__globals__", {})

    def error(self, what: str) -> SchemaError:
        return _error(self._fn, self._signature, what)

    def argument_text(self, place: int, parameter: inspect.Parameter) -> str:
        """Return the parameter as an argument of the schema."""
        what = f"parameter {parameter.name!r}"
        if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
            raise self.error(f"{what} is {parameter.kind.description}, which no schema can express")
        if parameter.annotation is parameter.empty:
            raise self.error(f"{what} has no annotation")
        type_ = self._type_of(parameter.annotation, what)
        alias = None
        if self._mutated is None or parameter.name in self._mutated:
            alias = _write_alias(type_, f"a{place}")
            if alias is None and self._mutated is not None:
                raise self.error(
                    f"{what} is in mutates_args, but {type_} has no tensor to write to"
                )
        if alias is not None:
            self._written[parameter.name] = alias
        text = str(Argument(parameter.name, type_, alias_info=alias))
        if parameter.default is parameter.empty:
            return text
        return f"{text}={self._default_text(type_, parameter.default, what)}"

    def returns_text(self) -> str:
        """Return the return annotation as the returns of the schema."""
        annotation = self._resolve(self._signature.return_annotation, "the return")
        if annotation is inspect.Signature.empty:
            raise self.error("the return has no annotation (-> None if it returns nothing)")
        if annotation is None or annotation is type(None):
            return "()"
        members = typing.get_args(annotation)
        if typing.get_origin(annotation) is tuple and Ellipsis not in members:
            types_ = [self._type_of(m, f"return {i}") for i, m in enumerate(members)]
            text = f"({', '.join(map(str, types_))})"
            return f"({text})" if len(types_) == 1 else text  # otherwise it would not be a tuple
        return str(self._type_of(annotation, "the return"))

    def written_text(self, kind: str) -> str:
        """Return the returns of an operator with the tag ``kind``: the arguments it writes to."""
        written = list(self._written)
        if not written:
            raise self.error(
                f"with the tag {kind!r}, it writes to a tensor, and mutates_args is ()"
            )
        returned = self.returns_text()
        expected = ", ".join(["Tensor"] * len(written))
        if returned != (expected if len(written) == 1 else f"({expected})"):
            raise self.error(
                f"with the tag {kind!r}, it returns the tensors that it writes to, "
                f"{', '.join(map(repr, written))}, and its return is {returned}"
            )
        aliased = ", ".join(f"Tensor{alias}" for alias in self._written.values())
        return aliased if len(written) == 1 else f"({aliased})"

    def _resolve(self, annotation: Any, what: str) -> Any:
        """Return the annotation, evaluated if it is a string."""
        if isinstance(annotation, typing.ForwardRef):
            annotation = annotation.__forward_arg__
        if not isinstance(annotation, str):
            return annotation
        try:
            return eval(annotation, self._globals)
        except Exception as error:
            raise self.error(
                f"the annotation {annotation!r} of {what} cannot be evaluated "
                f"({type(error).__name__}: {error}); its names must be importable at the top "
                f"of the module"
            ) from None

    def _type_of(self, annotation: Any, what: str) -> SchemaType:
        annotation = self._resolve(annotation, what)
        origin, members = typing.get_origin(annotation), typing.get_args(annotation)
        # An alias made with `type X = ...` (Python 3.12), such as NDArray in newer versions of
        # NumPy.
        aliased = getattr(origin or annotation, "__value__", None)
        if aliased is not None:
            generic = getattr(aliased, "__parameters__", ())
            return self._type_of(aliased[members] if generic and members else aliased, what)
        if origin is typing.Annotated:
            return self._type_of(members[0], what)
        if origin in (typing.Union, types.UnionType):
            return self._union_of(annotation, members, what)
        if origin in _LISTS:
            return ListType(self._type_of(members[0], what))
        if origin is tuple and len(members) == 2 and members[1] is Ellipsis:
            return ListType(self._type_of(members[0], what))
        known = _types().get(origin or annotation)
        if known is None and _is_array(annotation):
            known = TENSOR
        if known is None:
            hint = "; use list[X] instead of a tuple" if origin is tuple else ""
            raise self.error(
                f"{what} has the annotation {_name_of(annotation)}, which has no counterpart in "
                f"the schema language{hint} (there is one for {_READABLE})"
            )
        return known

    def _union_of(self, annotation: Any, members: tuple[Any, ...], what: str) -> SchemaType:
        rest = [member for member in members if member is not type(None)]
        if len(rest) == 1:
            type_ = self._type_of(rest[0], what)
        elif set(rest) <= _NUMBERS:
            type_ = SCALAR
        elif all(self._type_of(member, what) is TENSOR for member in rest):
            type_ = TENSOR
        else:
            raise self.error(
                f"{what} has the annotation {_name_of(annotation)}; of unions, only X | None, "
                f"numbers and tensors have a counterpart in the schema language"
            )
        return type_ if len(rest) == len(members) else optional_of(type_)

    def _default_text(self, type_: SchemaType, default: Any, what: str) -> str:
        try:
            value = converter_of(type_)(default)
        except TypeError as error:
            hint = "; annotate it as X | None" if default is None else ""
            raise self.error(
                f"the default of {what} does not fit its type: {error}{hint}"
            ) from None
        # Numbers are written as in Python, not as a parsed schema prints them.
        return _text_of(default if isinstance(default, int | float) else value)


def _text_of(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_text_of, value))}]"
    if isinstance(value, np.dtype) and value.name in CODE_OF_NAME:
        return value.name
    if isinstance(value, np.dtype | str):
        return str(Argument("", STR, str(value))).partition("=")[2]
    return str(value)


def _write_alias(type_: SchemaType, alias_set: str) -> AliasInfo | None:
    """Return the alias annotation of a written argument of that type; None without a tensor."""
    match type_:
        case OptionalType(element):
            return _write_alias(element, alias_set)
        case ListType(element):
            inner = _write_alias(element, alias_set)
            return inner and AliasInfo(is_write=True, contained=inner)
    sets = frozenset({alias_set})
    return AliasInfo(sets, sets, is_write=True) if type_ is TENSOR else None


def _is_array(annotation: Any) -> bool:
    if not isinstance(annotation, type):
        return False
    return find_backend(annotation) is not None or find_layout(annotation) is not None


def _name_of(annotation: Any) -> str:
    if isinstance(annotation, type) and not typing.get_args(annotation):
        return annotation.__qualname__
    return str(annotation)


@functools.cache  # not a constant: importing numpy.random takes a while, and few programs need it
def _types() -> dict[object, SchemaType]:
    return {
        Tensor: TENSOR,
        np.ndarray: TENSOR,
        int: SYM_INT,
        float: FLOAT,
        complex: COMPLEX,
        bool: BOOL,
        str: STR,
        np.dtype: SCALAR_TYPE,
        np.random.Generator: GENERATOR,
        Device: DEVICE,
        numbers.Number: SCALAR,
        numbers.Real: SCALAR,
    }

"""The conversion of a call's arguments to a stack, and of a stack to a call's result.

A ``Signature`` has what the calls of one schema need, computed once: converters, positions of
tensors, names. It is the interpreter path of the code that ``call_source.py`` generates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from opdispatch.arrays import describe_type, key_bits_of
from opdispatch.boxing.argument_conversion import converter_of
from opdispatch.boxing.named_results import make_results, result_names
from opdispatch.errors import ArgumentError, ReturnError
from opdispatch.keys.dispatch_key_set import AUTOGRAD_BITS
from opdispatch.schema.function_schema import NO_DEFAULT, Argument, FunctionSchema
from opdispatch.schema.types import (
    ANY,
    TENSOR,
    DictType,
    ListType,
    OptionalType,
    SchemaType,
    TupleType,
    TypeVariable,
    UnionType,
    is_generator,
)
from opdispatch.tensors.generator import key_bits_of_generator
from opdispatch.tensors.tensor import Tensor


class Signature:
    """Binds, boxes and checks for one schema; immutable.

    Its attributes are computed on first access, since most operators are never called.
    """

    __slots__ = (
        "_converters",
        "_generators",
        "_places",
        "_result_names",
        "_return_converters",
        "dispatching",
        "has_defaults",
        "hides_tensors",
        "keyword_only_names",
        "num_positional",
        "schema",
        "written",
    )

    dispatching: tuple[int, ...]
    """The stack indices of arguments whose tensors affect the dispatch."""
    has_defaults: bool
    hides_tensors: bool
    """Whether tensors may be where no key bits are read, such as in an argument of type Any."""
    keyword_only_names: tuple[str, ...]
    num_positional: int
    written: tuple[int, ...]
    """The stack indices of arguments that calls write to."""

    def __init__(self, schema: FunctionSchema) -> None:
        self.schema = schema

    def __getattr__(self, name: str) -> Any:
        if name not in Signature.__slots__:
            raise AttributeError(f"a Signature has no attribute {name!r}")
        self._compute()  # perhaps by several threads, with equal results
        return getattr(self, name)

    def _compute(self) -> None:
        """Compute the parts from the schema."""
        arguments, returns = self.schema.arguments, self.schema.returns
        self.num_positional = sum(not a.kwarg_only for a in arguments)
        self.keyword_only_names = tuple(a.name for a in arguments if a.kwarg_only)
        self.dispatching = tuple(i for i, a in enumerate(arguments) if a.type.dispatches)
        self.written = tuple(i for i, a in enumerate(arguments) if a.is_write)
        self._generators = tuple(i for i, a in enumerate(arguments) if is_generator(a.type))
        self.hides_tensors = any(
            not a.type.dispatches and _may_hold_tensors(a.type) for a in arguments
        )
        self.has_defaults = any(a.has_default for a in arguments)
        self._places = {argument.name: i for i, argument in enumerate(arguments)}
        self._converters = tuple(converter_of(a.type) for a in arguments)
        self._return_converters = tuple(converter_of(r.type) for r in returns)
        self._result_names = result_names(self.schema)

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the stack of a call: every argument, in schema order, converted to its type.

        Raises ArgumentError if the arguments do not fit the schema.
        """
        arguments = self.schema.arguments
        if len(args) > self.num_positional:
            raise self._error(
                f"takes {self._count_positional()} but {len(args)} were given", argument=""
            )
        stack: list[Any] = list(args)
        used = set()
        for place in range(len(args), len(arguments)):
            argument = arguments[place]
            if argument.name in kwargs:
                stack.append(kwargs[argument.name])
                used.add(argument.name)
            elif argument.has_default:
                stack.append(argument.default)
            else:
                # A misspelt name is the most likely cause, and so is named.
                raise self._unexpected_keyword(args, kwargs) or self._error(
                    f"is missing its argument {argument.name!r}", argument.name
                )
        if len(used) != len(kwargs) and (error := self._unexpected_keyword(args, kwargs)):
            raise error
        for place, convert in enumerate(self._converters):
            try:
                stack[place] = convert(stack[place])
            except TypeError as error:
                raise self._wrong_type(arguments[place], place, error) from None
        return stack

    def key_bits(self, stack: Sequence[Any]) -> int:
        """Return the union of the dispatch keys of all tensors and generators on a stack."""
        bits = 0
        for place in self.dispatching:
            value = stack[place]
            if value is None:
                continue
            if isinstance(value, list):
                for item in value:
                    if item is not None:
                        bits |= key_bits_of(item)
            else:
                bits |= key_bits_of(value)
        for place in self._generators:
            bits |= key_bits_of_generator(stack[place])
        return bits

    def needs_gradient(self, stack: Sequence[Any]) -> bool:
        """Return whether a tensor that affects the dispatch requires gradients."""
        for place in self.dispatching:
            value = stack[place]
            for each in value if isinstance(value, list) else (value,):
                # A tensor without an autograd key is not recorded here; asking a functional tensor
                # for its flag would update it.
                if (
                    isinstance(each, Tensor)
                    and each.key_bits & AUTOGRAD_BITS
                    and each.requires_grad_flag
                ):
                    return True
        return False

    def split(self, stack: Sequence[Any]) -> tuple[Sequence[Any], dict[str, Any]]:
        """Split a stack into the positional and the keyword-only arguments of an unboxed call."""
        return stack[: self.num_positional], dict(
            zip(self.keyword_only_names, stack[self.num_positional :], strict=True)
        )

    def box_returns(self, result: Any) -> list[Any]:
        """Return an unboxed kernel's results as a stack.

        Raises ReturnError if they do not match.
        """
        count = len(self.schema.returns)
        if count == 1:
            return [result]
        if count == 0:
            if result is not None:
                raise self._broken_promise(f"None, not {describe_type(result)}")
            return []
        if not isinstance(result, tuple | list) or len(result) != count:
            size = f" of {len(result)}" if isinstance(result, tuple | list) else ""
            raise self._broken_promise(f"a tuple of {count}, not {describe_type(result)}{size}")
        return list(result)

    def unbox_returns(self, stack: Sequence[Any]) -> Any:
        """Return the returns on a stack as an unboxed call does: None, the only one, or a tuple.

        It is a named tuple if the schema names them: see ``named_results``. Raises ReturnError if
        there are more or fewer values than the schema declares.
        """
        if len(stack) != len(self.schema.returns):
            raise self._broken_promise(
                f"{len(self.schema.returns)} values, and the kernel left {len(stack)} on the stack"
            )
        if len(stack) == 1:
            return stack[0]
        if self._result_names:
            return make_results(self._result_names, stack)
        return tuple(stack) if stack else None

    def check_returns(self, stack: Iterable[Any]) -> list[Any]:
        """Return the returns on a stack, converted to their types.

        Raises ReturnError if one does not match.
        """
        values = list(stack)
        if len(values) != len(self.schema.returns):
            self.unbox_returns(values)  # raises for a wrong number
        for place, convert in enumerate(self._return_converters):
            try:
                values[place] = convert(values[place])
            except TypeError as error:
                which = f"return {place}: " if len(values) > 1 else ""
                raise self._broken_promise(f"{which}{error}", expected_prefix="") from None
        return values

    def check_result(self, result: Any) -> Any:
        """Check the result of an unboxed kernel like ``check_returns``."""
        return self.unbox_returns(self.check_returns(self.box_returns(result)))

    def converted_defaults(self) -> list[Any]:
        """Return the default of each argument as a kernel gets it; NO_DEFAULT if there is none."""
        defaults: list[Any] = []
        for argument, convert in zip(self.schema.arguments, self._converters, strict=True):
            default = argument.default
            try:
                defaults.append(convert(default) if argument.has_default else default)
            except TypeError:  # PyTorch's schemas may have defaults of the wrong type
                defaults.append(NO_DEFAULT)
        return defaults

    def _count_positional(self) -> str:
        count = self.num_positional
        plural = "argument" if count == 1 else "arguments"
        return f"{count or 'no'} positional {plural}"

    def _error(self, what: str, argument: str, hint: str = "") -> ArgumentError:
        return ArgumentError(
            f"{self.schema.name} {what}; its schema is {self.schema}",
            hint=hint,
            operator=str(self.schema.name),
            argument=argument,
        )

    def _unexpected_keyword(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> ArgumentError | None:
        """Return the error for the first keyword that names no free argument; None if all do."""
        import difflib  # only errors need it

        for name in kwargs:
            place = self._places.get(name)
            if place is None:
                close = difflib.get_close_matches(name, self._places, n=1)
                hint = f"did you mean {close[0]!r}?" if close else ""
                return self._error(f"has no argument {name!r}", name, hint)
            if place < len(args):
                return self._error(f"got its argument {name!r} twice", name)
        return None

    def _wrong_type(self, argument: Argument, place: int, error: TypeError) -> ArgumentError:
        return self._error(
            f"got a wrong value for argument {argument.name!r} (position {place}): {error}",
            argument.name,
        )

    def _broken_promise(self, what: str, expected_prefix: str = "expected ") -> ReturnError:
        return ReturnError(
            f"the kernel of {self.schema.name} returned what its schema does not promise: "
            f"{expected_prefix}{what}; the schema is {self.schema}",
            operator=str(self.schema.name),
        )


def _may_hold_tensors(kind: SchemaType) -> bool:
    match kind:
        case OptionalType(element) | ListType(element):
            return _may_hold_tensors(element)
        case TupleType(members) | UnionType(members):
            return any(map(_may_hold_tensors, members))
        case DictType() | TypeVariable():
            return True
    return kind in (ANY, TENSOR)

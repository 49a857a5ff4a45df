"""An operator's name and signature, as written in the schema language.

All values here are frozen. See Note [Printed schemas read back] for what ``str()`` gives.
"""

from __future__ import annotations

from dataclasses import dataclass

from opdispatch.schema.argument import NO_DEFAULT, AliasInfo, Argument
from opdispatch.schema.operator_name import OperatorName
from opdispatch.schema.types import INT, SYM_INT, ListType, OptionalType, SchemaType

__all__ = ["NO_DEFAULT", "AliasInfo", "Argument", "FunctionSchema", "OperatorName"]

# Note [Printed schemas read back]
#
# `parse_schema(str(schema)) == schema`, always: registrations cross process boundaries as
# text. Where PyTorch can read its own text back, ours is the same, character by character,
# except that alias sets are sorted (PyTorch's order is that of a hash table). Where it
# cannot, ours differs:
#
#   written                    PyTorch prints           what we print
#   Device? device="cuda"      Device? device=cuda      Device? device="cuda"
#   complex z=2j               complex z=0.+2.j         complex z=2.j
#   int[] x=[1, 1]             int[] x=1                int[] x=[1, 1]
#   str s="(beyond ASCII)"     (something else)         its UTF-8 bytes, in octal
#   Tensor! x                  Tensor($0! -> ) x        Tensor! x
#   Tensor(a|*) x              Tensor(*|a) x            Tensor(a|*) x
#   Tensor(a!)?[] x            Tensor?(a!)[] x          Tensor(a!)?[] x
#   Tensor(a!)[][] x           Tensor[](!)[] x          Tensor(a!)[][] x
#   Union(Tensor, Scalar) x    Union(TensorScalar) x    Union(Tensor, Scalar) x
#   Scalar?? x                 Union(Scalar)? x         Scalar? x


@dataclass(frozen=True, slots=True)
class FunctionSchema:
    """The signature of one operator overload.

    ``is_vararg`` and ``is_varret`` say that ``...`` ends the arguments or the returns.
    """

    name: OperatorName
    arguments: tuple[Argument, ...]
    returns: tuple[Argument, ...]
    is_vararg: bool = False
    is_varret: bool = False

    @property
    def overload_name(self) -> str:
        """The overload name."""
        return self.name.overload_name

    @property
    def is_mutable(self) -> bool:
        """Whether the operator writes to any of its arguments."""
        return any(argument.is_write for argument in self.arguments)

    @property
    def dispatching_arguments(self) -> tuple[int, ...]:
        """Positions of the arguments that contribute to the dispatch keys of a call."""
        return tuple(i for i, argument in enumerate(self.arguments) if argument.type.dispatches)

    def with_name(self, name: OperatorName) -> FunctionSchema:
        """Return the same signature under another name."""
        return FunctionSchema(name, self.arguments, self.returns, self.is_vararg, self.is_varret)

    def with_namespace(self, namespace: str) -> FunctionSchema:
        """Return this schema in the namespace, unchanged if its name already has one."""
        if self.name.namespace:
            return self
        return self.with_name(
            OperatorName(f"{namespace}::{self.name.name}", self.name.overload_name)
        )

    def find_differences(self, other: FunctionSchema) -> str | None:
        """Return a clause that says how the two signatures differ, or None if they agree.

        Like PyTorch's comparison of a definition with a kernel, this compares the number and the
        types of arguments and returns. Names, defaults, list sizes, ``*``, ``...`` and alias
        annotations are ignored, and ``SymInt`` equals ``int``.
        """
        for what, mine, theirs in (
            ("argument", self.arguments, other.arguments),
            ("return", self.returns, other.returns),
        ):
            if len(mine) != len(theirs):
                return f"the number of {what}s differs: {len(mine)} and {len(theirs)}"
            for position, (one, two) in enumerate(zip(mine, theirs, strict=True), start=1):
                if _comparable(one.type) != _comparable(two.type):
                    named = f" ({one.name})" if one.name else ""
                    return (
                        f"the type of {what} {position}{named} differs: {one.type} and {two.type}"
                    )
        return None

    def is_backward_compatible_with(self, old: FunctionSchema) -> bool:
        """Return whether every call written for ``old`` still works, with compatible results."""
        from opdispatch.schema.compatibility import is_backward_compatible  # few ask

        return is_backward_compatible(self, old)

    def check_forward_compatible_with(self, old: FunctionSchema) -> tuple[bool, str]:
        """Return whether ``old`` can read calls serialized with this schema, and the reason if
        not."""
        from opdispatch.schema.compatibility import find_forward_incompatibility  # few ask

        why = find_forward_incompatibility(self, old)
        return why is None, why or ""

    def __str__(self) -> str:
        arguments: list[str] = []
        for argument in self.arguments:
            if argument.kwarg_only and "*" not in arguments:
                arguments.append("*")
            arguments.append(str(argument))
        if self.is_vararg:
            arguments.append("...")
        returns = [str(value) for value in self.returns]
        if self.is_varret:
            returns.append("...")
        # A single return needs parentheses if its type begins with one: "((str, t)[])".
        bare = len(returns) == 1 and not returns[0].startswith("(")
        joined = ", ".join(returns)
        return f"{self.name}({', '.join(arguments)}) -> {joined if bare else f'({joined})'}"


def _comparable(type_: SchemaType) -> SchemaType:
    """Return the type as signatures are compared: without sizes, and with int for SymInt."""
    match type_:
        case ListType(element):
            return ListType(_comparable(element))
        case OptionalType(element):
            return OptionalType(_comparable(element))
    return INT if type_ is SYM_INT else type_

"""The types of arguments and returns in the schema language.

Each type is a frozen value; the parser reads its ``str()`` back to an equal type. Types without
parameters are singletons (``TENSOR``, ``INT``, ...), so hot code compares them with ``is``; compare
all others with ``==``.

See Note [Real and plain types].
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

# Note [Real and plain types]
#
# PyTorch parses each type to two types. The "real" type is as written; the "plain" type (PyTorch
# calls it "fake") has `int` in place of ScalarType, Layout, MemoryFormat and SymInt. An argument
# has its real type, also in lists and optionals, but a tuple, Dict, Union or Future contains plain
# types only. Defaults are parsed by the plain type. `SchemaType.plain` converts real to plain.


class SchemaType:
    """Abstract base of the types of the schema language; the subclasses below are the only ones."""

    __slots__ = ()

    @property
    def dispatches(self) -> bool:
        """Whether an argument of this type contributes to the dispatch keys of a call.

        Only ``Tensor``, ``Tensor?``, ``Tensor[]`` and ``Tensor?[]`` do, with or without a size.
        """
        return False

    @property
    def plain(self) -> SchemaType:
        """This type as PyTorch keeps it inside a container (Note [Real and plain types])."""
        return self

    def str(self) -> str:
        """Return the type's text, by PyTorch's name."""
        return format(self)


@dataclass(frozen=True, slots=True)
class BasicType(SchemaType):
    """A type without parameters, such as ``Tensor`` or ``int``."""

    name: str

    @property
    def dispatches(self) -> bool:
        """True for ``Tensor`` alone."""
        return self.name == "Tensor"

    @property
    def plain(self) -> SchemaType:
        """``int`` for the types that PyTorch keeps as one, otherwise the type itself."""
        return INT if self.name in _PLAIN_INTEGERS else self

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class TypeVariable(SchemaType):
    """A type variable: a lower-case name that is not a type, such as ``t``. Accepts any value.

    As in PyTorch, type variables are equal whatever their names are.
    """

    name: str = field(compare=False)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ClassType(SchemaType):
    """A custom class, by its whole name: ``__torch__.torch.classes.quantized.ConvPrepack``."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class ListType(SchemaType):
    """``T[]`` or ``T[2]``; the latter also accepts a single T, which is repeated to the size."""

    element: SchemaType
    size: int | None = None

    @property
    def dispatches(self) -> bool:
        """True for ``Tensor[]`` and ``Tensor?[]``."""
        return self.element is TENSOR or self.element == OptionalType(TENSOR)

    @property
    def plain(self) -> SchemaType:
        """The list of the element's plain type, without its size."""
        return ListType(self.element.plain)

    def __str__(self) -> str:
        return f"{self.element}[{'' if self.size is None else self.size}]"


@dataclass(frozen=True, slots=True)
class OptionalType(SchemaType):
    """``T?``: a T or None."""

    element: SchemaType

    @property
    def dispatches(self) -> bool:
        """True for ``Tensor?`` alone."""
        return self.element is TENSOR

    @property
    def plain(self) -> SchemaType:
        """The optional of the element's plain type."""
        return OptionalType(self.element.plain)

    def __str__(self) -> str:
        return f"{self.element}?"


@dataclass(frozen=True, slots=True)
class TupleType(SchemaType):
    """``(T, U)``: a tuple of exactly these types."""

    elements: tuple[SchemaType, ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.elements))})"


@dataclass(frozen=True, slots=True)
class DictType(SchemaType):
    """``Dict(K, V)``."""

    key: SchemaType
    value: SchemaType

    def __str__(self) -> str:
        return f"Dict({self.key}, {self.value})"


@dataclass(frozen=True, slots=True)
class UnionType(SchemaType):
    """``Union(T, U)``: a value of any of the types. Made by `union_of`, which sorts the members."""

    members: tuple[SchemaType, ...]

    def __str__(self) -> str:
        # A union with int, float and complex prints them as one Scalar, at the end.
        names = [str(member) for member in self.members]
        if set(self.members) >= _NUMBERS:
            names = [str(member) for member in self.members if member not in _NUMBERS]
            names.append(str(SCALAR))
        return f"Union({', '.join(names)})"


@dataclass(frozen=True, slots=True)
class WrapperType(SchemaType):
    """``Future(T)``, ``Await(T)`` or ``RRef(T)``; ``wrapper`` is the word before the bracket."""

    wrapper: str
    element: SchemaType

    def __str__(self) -> str:
        return f"{self.wrapper}({self.element})"


TENSOR: Final = BasicType("Tensor")
INT: Final = BasicType("int")
FLOAT: Final = BasicType("float")
COMPLEX: Final = BasicType("complex")
BOOL: Final = BasicType("bool")
STR: Final = BasicType("str")
SCALAR: Final = BasicType("Scalar")
SYM_INT: Final = BasicType("SymInt")
SYM_BOOL: Final = BasicType("SymBool")
SCALAR_TYPE: Final = BasicType("ScalarType")
LAYOUT: Final = BasicType("Layout")
MEMORY_FORMAT: Final = BasicType("MemoryFormat")
QSCHEME: Final = BasicType("QScheme")
DEVICE: Final = BasicType("Device")
GENERATOR: Final = BasicType("Generator")
STORAGE: Final = BasicType("Storage")
STREAM: Final = BasicType("Stream")
QUANTIZER: Final = BasicType("Quantizer")
CAPSULE: Final = BasicType("Capsule")
NONE: Final = BasicType("NoneType")
ANY: Final = BasicType("Any")
ANY_CLASS: Final = BasicType("AnyClassType")
ANY_ENUM: Final = BasicType("AnyEnumType")

BASIC_TYPES: Final[dict[str, BasicType]] = {
    **{
        basic.name: basic
        for basic in (
            *(TENSOR, INT, FLOAT, COMPLEX, BOOL, STR, SCALAR, SYM_INT, SYM_BOOL, SCALAR_TYPE),
            *(LAYOUT, MEMORY_FORMAT, QSCHEME, DEVICE, GENERATOR, STORAGE, STREAM, QUANTIZER),
            *(CAPSULE, NONE, ANY, ANY_CLASS, ANY_ENUM),
        )
    },
    "None": NONE,
    "DeviceIndex": INT,
    "ConstQuantizerPtr": INT,
}
"""Every name of a type without parameters, aliases included."""

_PLAIN_INTEGERS = frozenset({"ScalarType", "Layout", "MemoryFormat", "SymInt"})
_NUMBERS = frozenset({INT, FLOAT, COMPLEX})


def is_generator(type_: SchemaType) -> bool:
    """Return whether the type is ``Generator`` or ``Generator?``.

    Such arguments also contribute to dispatch keys, as in PyTorch's unboxed calls
    (``DispatchKeyExtractor.h``).
    """
    return type_ is GENERATOR or (isinstance(type_, OptionalType) and type_.element is GENERATOR)


def optional_of(element: SchemaType) -> SchemaType:
    """Return ``element?``, flattened as PyTorch does. Raises ValueError for ``NoneType?``."""
    match element:
        case OptionalType():
            return element
        case UnionType(members) if frozenset(members) == _NUMBERS:
            return OptionalType(SCALAR)
        case UnionType(members) if NONE in members:
            return OptionalType(UnionType(tuple(m for m in members if m is not NONE)))
    if element is NONE:
        raise ValueError("NoneType? is not a type")
    return OptionalType(element)


def union_of(members: tuple[SchemaType, ...]) -> SchemaType:
    """Return the union of the members: flattened, without duplicates, in PyTorch's order of kinds.

    ``Union(T, None)`` is ``T?``. Raises ValueError if only a single type would be left.
    """
    distinct = list(dict.fromkeys(flat for member in members for flat in _flatten(member)))
    if ANY in distinct:  # Any absorbs everything except None
        distinct = [member for member in distinct if member is ANY or member is NONE]
    if len(distinct) < 2:
        raise ValueError("a Union needs two different types")
    if NONE in distinct:
        rest = [member for member in distinct if member is not NONE]
        if frozenset(rest) == _NUMBERS:
            return OptionalType(SCALAR)
        if len(rest) == 1:
            return OptionalType(rest[0])
    return UnionType(tuple(sorted(distinct, key=_kind_order)))


def _flatten(member: SchemaType) -> tuple[SchemaType, ...]:
    match member:
        case UnionType(members):
            return members
        case OptionalType(element):
            return (*_flatten(element), NONE)
    return (INT, FLOAT, COMPLEX) if member is SCALAR else (member,)


# PyTorch sorts a union's members by their kind, in the order of its list of kinds.
_KINDS = (
    *("Any", "AnyEnumType", "Tensor", "Storage", "tuple", "list", "Dict", "Scalar", "float"),
    *("complex", "Future", "Await", "RRef", "int", "NoneType", "str", "Generator", "Quantizer"),
    *("bool", "optional", "variable", "Device", "Stream", "class", "Capsule", "QScheme"),
    *("AnyClassType", "SymBool", "union"),
)
_ORDER_OF_KIND = {kind: order for order, kind in enumerate(_KINDS)}


def _kind_order(member: SchemaType) -> tuple[int, str]:
    match member:
        case BasicType(name) | WrapperType(wrapper=name):
            kind = name
        case TupleType():
            kind = "tuple"
        case ListType():
            kind = "list"
        case DictType():
            kind = "Dict"
        case TypeVariable():
            kind = "variable"
        case ClassType():
            kind = "class"
        case _:
            kind = "optional"
    return _ORDER_OF_KIND[kind], str(member)

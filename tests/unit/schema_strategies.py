"""Hypothesis strategies for schemas: values that the parser can give, made without it."""

from hypothesis import strategies as st

from opdispatch.schema.function_schema import (
    NO_DEFAULT,
    AliasInfo,
    Argument,
    FunctionSchema,
    OperatorName,
)
from opdispatch.schema.lexer import KEYWORDS
from opdispatch.schema.scalar_type import LAYOUTS, MEMORY_FORMATS, find_dtype_of_code
from opdispatch.schema.types import (
    ANY,
    BASIC_TYPES,
    BOOL,
    COMPLEX,
    DEVICE,
    FLOAT,
    INT,
    LAYOUT,
    MEMORY_FORMAT,
    NONE,
    SCALAR,
    SCALAR_TYPE,
    STR,
    SYM_INT,
    TENSOR,
    ClassType,
    DictType,
    ListType,
    OptionalType,
    SchemaType,
    TupleType,
    TypeVariable,
    WrapperType,
    optional_of,
    union_of,
)

identifiers = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in KEYWORDS
)
variables = (
    st.from_regex(r"[a-z][a-z0-9]{0,3}", fullmatch=True)
    .filter(lambda name: name not in KEYWORDS and name not in BASIC_TYPES)
    .map(TypeVariable)
)
classes = st.builds("__torch__.torch.classes.{}.{}".format, identifiers, identifiers).map(ClassType)
basic_types = st.sampled_from(sorted(set(BASIC_TYPES.values()), key=str))


def _unions(types: st.SearchStrategy[SchemaType]) -> st.SearchStrategy[SchemaType]:
    return st.lists(types, min_size=2, max_size=4, unique=True).map(_union_or_tensor)


def _union_or_tensor(members: list[SchemaType]) -> SchemaType:
    try:
        return union_of(tuple(member.plain for member in members))
    except ValueError:
        return TENSOR


def _containers(types: st.SearchStrategy[SchemaType]) -> st.SearchStrategy[SchemaType]:
    plain = types.map(lambda type_: type_.plain)
    keys = st.sampled_from([ANY, INT, FLOAT, COMPLEX, BOOL, TENSOR, DEVICE, STR])
    return st.one_of(
        types.map(ListType),
        types.filter(lambda type_: type_ is not NONE).map(optional_of),
        st.lists(plain, max_size=3).map(tuple).map(TupleType),
        st.builds(DictType, keys, plain),
        st.builds(WrapperType, st.sampled_from(["Future", "Await", "RRef"]), plain),
        _unions(types),
    )


types = st.recursive(st.one_of(basic_types, variables, classes), _containers, max_leaves=6)
sized_types = st.builds(ListType, types, st.integers(0, 65_536))

finite = st.floats(allow_nan=False, allow_infinity=False, allow_subnormal=False)
integers = st.integers(-(2**63), 2**63 - 1)
# Surrogates alone are no text that UTF-8 can express.
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
dtypes = st.sampled_from([dtype for code in range(46) if (dtype := find_dtype_of_code(code))])
devices = st.sampled_from(["cpu", "cuda", "cuda:1", "meta"])
imaginary = finite.map(lambda imag: complex(0, imag))

_DEFAULTS = {
    INT: integers | st.booleans() | st.none() | finite | texts,
    SYM_INT: integers,
    FLOAT: finite | st.booleans() | st.none(),
    COMPLEX: imaginary | st.none(),
    BOOL: st.booleans(),
    STR: texts | st.none(),
    SCALAR: integers | finite | imaginary | st.booleans(),
    SCALAR_TYPE: dtypes | st.just(12),
    LAYOUT: st.sampled_from(LAYOUTS),
    MEMORY_FORMAT: st.sampled_from(MEMORY_FORMATS),
    DEVICE: devices,
    TENSOR: st.none(),
}
_ELEMENTS = {INT: integers, SYM_INT: integers, FLOAT: finite, BOOL: st.booleans()}


@st.composite
def defaults(draw: st.DrawFn, type_: SchemaType) -> object:
    """A default that an argument of that type can have, or NO_DEFAULT."""
    if isinstance(type_, OptionalType):
        inner = _DEFAULTS.get(type_.element, st.none())
        return draw(st.none() | inner.filter(lambda value: not isinstance(value, tuple)))
    if isinstance(type_, ListType) and type_.element in _ELEMENTS:
        return draw(st.lists(_ELEMENTS[type_.element], max_size=4).map(tuple))
    return draw(_DEFAULTS.get(type_, st.just(NO_DEFAULT)))


alias_sets = st.frozensets(st.sampled_from(["a", "b", "c", "*"]), min_size=1, max_size=3)


@st.composite
def aliases(draw: st.DrawFn, type_: SchemaType) -> AliasInfo | None:
    """An alias annotation that an argument of that type can have, or None."""
    if isinstance(type_, OptionalType):
        return draw(aliases(type_.element))
    if isinstance(type_, ListType):
        contained = draw(aliases(type_.element))
        own = draw(st.none() | _annotations)
        if own is None:
            return contained and AliasInfo(is_write=contained.is_write, contained=contained)
        return AliasInfo(own.before_set, own.after_set, own.is_write, contained)
    if isinstance(type_, TupleType | WrapperType | ClassType):
        return None
    return draw(st.none() | _annotations)


_annotations = st.builds(AliasInfo, alias_sets, alias_sets, st.booleans())


@st.composite
def arguments(draw: st.DrawFn) -> tuple[Argument, ...]:
    """Arguments in an order that the language allows."""
    result = []
    seen_default = False
    kwarg_only = False
    for _ in range(draw(st.integers(0, 4))):
        type_ = draw(types | sized_types)
        kwarg_only = kwarg_only or draw(st.integers(0, 3)) == 0
        default = draw(st.just(NO_DEFAULT) | defaults(type_))
        seen_default = seen_default or default is not NO_DEFAULT
        if seen_default and default is NO_DEFAULT:
            kwarg_only = True
        alias = draw(aliases(type_))
        result.append(Argument(draw(identifiers), type_, default, kwarg_only, alias))
    return tuple(result)


@st.composite
def returns(draw: st.DrawFn) -> tuple[Argument, ...]:
    """Lists of returns, with and without names."""
    result = []
    for _ in range(draw(st.integers(0, 3))):
        type_ = draw(types | sized_types)
        name = draw(st.just("") | identifiers)
        result.append(Argument(name, type_, alias_info=draw(aliases(type_))))
    return tuple(result)


names = st.builds(
    OperatorName,
    identifiers | st.builds("{}::{}".format, identifiers, identifiers),
    st.just("") | identifiers.filter(lambda n: n != "default" and not n.startswith("__")),
)


@st.composite
def schemas(draw: st.DrawFn) -> FunctionSchema:
    """A schema."""
    taken = draw(arguments())
    is_vararg = not any(a.has_default for a in taken) and draw(st.booleans())
    return FunctionSchema(draw(names), taken, draw(returns()), is_vararg, draw(st.booleans()))

"""The writer's side: what is refused, what is published, and registration as an algebra."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from opdispatch import (
    Dispatcher,
    DispatchKey,
    DispatchKeyError,
    DuplicateDefinitionError,
    KernelFunction,
    Registration,
    RegistrationError,
    parse_schema,
)
from opdispatch.dispatch.registration import runtime_keys_of_fallback
from opdispatch.functionalities import BUILTIN_FALLBACKS
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS

K = DispatchKey
SCHEMA = parse_schema("t::f(Tensor x) -> Tensor")
NAME = SCHEMA.name
KERNEL = KernelFunction.from_unboxed(lambda x: x)

# -- what is refused: the registry is as before --------------------------------------------------


def image(dispatcher):
    """Everything that callers can see of a dispatcher, without the fallbacks of all."""
    return {
        "operators": {
            str(name): (op.dump_state(), op.dump_table(), op.has_schema)
            for name in dispatcher.operators()
            if (op := dispatcher.find_op(name)) is not None
        },
        "overloads": {n.name: set(dispatcher.overloads(n.name)) for n in dispatcher.operators()},
        "kernels": {str(n): dispatcher.list_kernels(n) for n in dispatcher.operators()},
        "libraries": dispatcher.libraries(),
        "fallbacks": {k: r for k, r in dispatcher.fallbacks().items() if r.site != "opdispatch"},
    }


def test_a_second_definition_is_refused_and_names_both_places(dispatcher):
    dispatcher.register_def(SCHEMA, site="one.py:1")
    before = image(dispatcher)
    with pytest.raises(DuplicateDefinitionError) as caught:
        dispatcher.register_def(SCHEMA, site="two.py:2")
    assert str(caught.value) == (
        "operator t::f is defined already, registered at one.py:1; "
        "the second one was registered at two.py:2"
    )
    assert caught.value.facts == {
        "first_site": "one.py:1",
        "second_site": "two.py:2",
        "operator": "t::f",
    }
    assert image(dispatcher) == before


def test_a_namespace_has_one_library_of_kind_def(dispatcher):
    first = dispatcher.register_library("t", site="one.py:1")
    text = r"the namespace 't' has a library of kind DEF already, registered at one\.py:1"
    with pytest.raises(DuplicateDefinitionError, match=text) as caught:
        dispatcher.register_library("t")
    assert "FRAGMENT" in caught.value.hint
    first.close()
    dispatcher.register_library("t")
    assert list(dispatcher.libraries()) == ["t"]


def test_a_key_has_one_fallback(dispatcher):
    dispatcher.register_fallback(K.Fake, KERNEL, site="one.py:1")
    before = image(dispatcher)
    text = "the dispatch key Fake has a fallback already, registered at one.py:1"
    with pytest.raises(DuplicateDefinitionError, match=text):
        dispatcher.register_fallback(K.Fake, KERNEL)
    assert image(dispatcher) == before


def test_a_fallback_for_an_alias_serves_all_its_keys_or_none(dispatcher):
    alias = K.CompositeImplicitAutogradNestedTensor
    with dispatcher.register_fallback(alias, KERNEL) as handle:
        having = {key for key, r in dispatcher.fallbacks().items() if r is handle.registration}
        assert having == set(runtime_keys_of_fallback(alias))
        assert len(having) == 17
    dispatcher.register_fallback(K.NestedTensorCPU, KERNEL)
    before = image(dispatcher)
    with pytest.raises(DuplicateDefinitionError, match="key NestedTensorCPU has a fallback"):
        dispatcher.register_fallback(alias, KERNEL)
    assert image(dispatcher) == before


@pytest.mark.parametrize("key", [None, K.Undefined])
def test_a_fallback_needs_a_key(dispatcher, key):
    with pytest.raises(DispatchKeyError, match="a fallback needs the dispatch key that it is for"):
        dispatcher.register_fallback(key, KERNEL)


@pytest.mark.parametrize(("key", "kernel"), [(None, KERNEL), (K.CPU, None)])
def test_an_implementation_needs_a_key_and_a_kernel(dispatcher, key, kernel):
    with pytest.raises(RegistrationError, match="needs a kernel and a dispatch key"):
        dispatcher.register(Registration("impl", name=NAME, key=key, kernel=kernel))
    assert dispatcher.operators() == []


def test_a_fallback_comes_and_goes_for_operators_that_exist_and_for_new_ones(dispatcher, caller):
    dispatcher.register_def(SCHEMA)
    dispatcher.register_impl(NAME, K.CPU, KERNEL)
    op, x = dispatcher.get_schema(NAME), np.ones(2)
    assert op(x) is x
    y = np.zeros(1)
    with dispatcher.register_fallback(K.CUDA, KernelFunction.from_fallback(lambda op, x: y)):
        op.call_boxed_for_dispatch_key(K.CUDA, stack := [x])
        assert stack == [y]
        dispatcher.register_def(parse_schema("t::g(Tensor x) -> Tensor"))
        dispatcher.get_schema("t::g").call_boxed_for_dispatch_key(K.CUDA, stack := [x])
        assert stack == [y]
    assert not any(row.key is K.CUDA for row in op.table_rows())
    assert op(x) is x


def test_an_epoch_passes_with_every_publication_and_with_nothing_else(dispatcher):
    epochs = [dispatcher.epoch]

    def passes():
        epochs.append(dispatcher.epoch)
        return epochs[-1] - epochs[-2]

    handle = dispatcher.register_def(SCHEMA)
    assert passes() == 1
    with dispatcher.transaction():
        for key in (K.CPU, K.CUDA, K.Meta):
            dispatcher.register_impl(NAME, key, KERNEL)
    assert passes() == 1
    handle.close()
    assert passes() == 1
    handle.close()
    with dispatcher.transaction():
        pass
    with pytest.raises(DispatchKeyError):
        dispatcher.register_fallback(K.Undefined, KERNEL)
    assert passes() == 0


# -- registration as an algebra --------------------------------------------------------------------

SCHEMAS = [
    parse_schema(text)
    for text in (
        "t::f(Tensor x) -> Tensor",
        "t::f.other(Tensor x, int n=1) -> Tensor",
        "t::g(Tensor x) -> Tensor",
        "u::f(Tensor x) -> Tensor",
    )
]
NAMES = [schema.name for schema in SCHEMAS]
KEYS = [
    *(K.CPU, K.CUDA, K.AutogradCPU, K.SparseCPU, K.Dense, K.Tracer),
    *(K.CompositeImplicitAutograd, K.CompositeExplicitAutograd, K.Autograd),
]
kernels = st.sampled_from([KERNEL, KernelFunction.fallthrough()])
registrations = st.one_of(
    st.builds(Registration, st.just("library"), namespace=st.sampled_from(["t", "u"])),
    st.builds(Registration, st.just("def"), schema=st.sampled_from(SCHEMAS)),
    st.builds(
        Registration,
        st.just("impl"),
        name=st.sampled_from(NAMES),
        key=st.sampled_from(KEYS),
        kernel=kernels,
    ),
    st.builds(
        Registration, st.just("fallback"), key=st.sampled_from([*KEYS, K.Python]), kernel=kernels
    ),
)


def keys_for_one_fallback(registration):
    """The keys of a fallback that take no second one.

    A functionality such as Dense has no slot, and takes any number; so does one more key, as in
    PyTorch.
    """
    keys = runtime_keys_of_fallback(registration.key)
    return {key for key in keys if key in RUNTIME_KEYS and key.name != "AutogradPrivateUse1"}


def is_refused_beside(one, other):
    """Whether one of the two registrations excludes the other."""
    if one.kind != other.kind:
        return False
    match one.kind:
        case "library":
            return one.namespace == other.namespace
        case "def":
            return one.schema.name == other.schema.name
        case "fallback":
            return not keys_for_one_fallback(one).isdisjoint(keys_for_one_fallback(other))
    return False


def is_refused_at_all(registration):
    taken = set(BUILTIN_FALLBACKS)
    is_fallback = registration.kind == "fallback"
    return is_fallback and not taken.isdisjoint(keys_for_one_fallback(registration))


def covers(one, other):
    """Whether the order of the two registrations tells: the newer kernel covers the older."""
    if one.kind == other.kind == "fallback":
        mine, theirs = map(runtime_keys_of_fallback, (one.key, other.key))
        return not set(mine).isdisjoint(theirs)
    return one.kind == other.kind == "impl" and (one.name, one.key) == (other.name, other.key)


def compatible(chosen):
    """The registrations that can be applied one after the other."""
    kept = []
    for registration in chosen:
        if is_refused_at_all(registration):
            continue
        if not any(is_refused_beside(registration, other) for other in kept):
            kept.append(registration)
    return kept


programs = st.lists(registrations, max_size=8).map(compatible)


@settings(max_examples=60)
@given(programs, st.randoms(use_true_random=False))
def test_registrations_commute_and_undo_in_any_order(program, rng):
    """Every subset of registrations looks the same, on whichever way it was reached."""
    dispatcher, reference = Dispatcher(), Dispatcher()
    empty = image(dispatcher)
    handles = [dispatcher.register(registration) for registration in program]
    full = image(dispatcher)
    rng.shuffle(handles)
    while handles:
        handles.pop().close()
        assert dispatcher.check_invariants() == []
        # What is left, registered in the order of the program by itself:
        left = {handle.registration for handle in handles}
        again = [
            reference.register(registration) for registration in program if registration in left
        ]
        assert image(dispatcher) == image(reference)
        for handle in again:
            handle.close()
    assert image(dispatcher) == empty
    if not any(covers(a, b) for place, a in enumerate(program) for b in program[:place]):
        for registration in rng.sample(program, len(program)):
            dispatcher.register(registration)
        assert image(dispatcher) == full


@settings(max_examples=60)
@given(programs, programs, st.integers(0, 8))
def test_a_failed_transaction_restores_exactly_what_was_before(before, within, undone):
    dispatcher = Dispatcher()
    handles = [dispatcher.register(registration) for registration in before]
    image_before, live = image(dispatcher), [handle.live for handle in handles]
    try:
        with dispatcher.transaction() as transaction:
            for handle in handles[:undone]:
                handle.close()
            for registration in within:
                try:
                    dispatcher.register(registration)
                except RegistrationError:
                    assert registration not in transaction.registrations
            raise InterruptedError
    except InterruptedError:
        pass
    assert image(dispatcher) == image_before
    assert [handle.live for handle in handles] == live
    assert dispatcher.check_invariants() == []


class RegistrationPrograms(RuleBasedStateMachine):
    """Registers and undoes at random, in and out of transactions, beside a plain model."""

    live = Bundle("live")

    def __init__(self):
        super().__init__()
        self.dispatcher = Dispatcher()
        self.model = []  # live registrations, oldest first
        self.open = []  # the transactions that are open, with the model at their beginning

    def refused(self, registration):
        return is_refused_at_all(registration) or any(
            is_refused_beside(registration, other.registration) for other in self.model
        )

    @rule(target=live, registration=registrations)
    def register(self, registration):
        try:
            handle = self.dispatcher.register(registration)
        except RegistrationError:
            assert self.refused(registration)
            return None
        assert not self.refused(registration)
        self.model.append(handle)
        return handle

    @rule(handle=consumes(live))
    def undo(self, handle):
        if handle is not None:
            handle.close()
            if handle in self.model:
                self.model.remove(handle)

    @rule()
    def begin(self):
        if len(self.open) < 2:
            transaction = self.dispatcher.transaction()
            transaction.__enter__()
            self.open.append((transaction, list(self.model)))

    @rule(fails=st.booleans())
    def end(self, fails):
        if self.open:
            transaction, before = self.open.pop()
            transaction.__exit__(KeyError if fails else None, None, None)
            if fails:
                self.model = before

    @invariant()
    def shows_what_is_registered(self):
        kernels, defined = {}, set()
        for handle in self.model:
            assert handle.live
            registration = handle.registration
            if registration.kind == "impl":
                by_key = kernels.setdefault(registration.name, {})
                by_key[registration.key] = registration
            elif registration.kind == "def":
                defined.add(registration.schema.name)
        for name in NAMES:
            op = self.dispatcher.find_op(name)
            assert (op is not None) == (name in kernels or name in defined)
            assert (self.dispatcher.find_schema(name) is not None) == (name in defined)
            active = {k.key: k.registration for k in self.dispatcher.list_kernels(name) if k.active}
            assert active == kernels.get(name, {})
        if not self.open:
            assert self.dispatcher.check_invariants() == []

    def teardown(self):
        while self.open:
            self.end(fails=False)
        for handle in self.model:
            handle.close()
        assert self.dispatcher.operators() == []
        assert self.dispatcher.libraries() == {}
        assert dict(self.dispatcher.fallbacks()).keys() == set(BUILTIN_FALLBACKS)
        assert self.dispatcher.check_invariants() == []


RegistrationPrograms.TestCase.settings = settings(max_examples=60, stateful_step_count=25)
TestRegistrationPrograms = RegistrationPrograms.TestCase

"""Registration programs: after every step, what PyTorch refused, dumped and computed.

``golden/programs.json.gz`` was taken by ``record_programs.py``, which says what a program is. The
backend fallbacks that only PyTorch has are registered here by hand, so that the same keys are
taken.
"""

import contextlib
from collections import Counter

import pytest
from golden_file import read_golden

from opdispatch import (
    Dispatcher,
    DispatchKeyError,
    KernelFunction,
    Library,
    OperatorName,
    RegistrationError,
    parse_dispatch_key,
    parse_schema,
)
from opdispatch.keys.dispatch_key_set import RUNTIME_KEYS

GOLDEN = read_golden("programs.json.gz")
PROGRAMS = GOLDEN["programs"]
TAKEN = [parse_dispatch_key(name) for name in GOLDEN["fallbacks"]]
# Names that are accepted here, and not by PyTorch: every step with one is refused there.
OLD_NAMES = {"DefaultBackend"}


def kernel(x):
    return x


def fallback(op, *args):
    return args


def from_step(function, how):
    if how == "fallthrough":
        return KernelFunction.fallthrough()
    signature = "(Tensor _0) -> Tensor _0" if how == "signed" else ""
    return KernelFunction.from_unboxed(function, signature=signature)


class Replay:
    """A dispatcher in which a program is run, step by step."""

    def __init__(self, number):
        self.namespace = f"programs{number}"
        self.dispatcher = Dispatcher()
        for key in TAKEN:
            if key in RUNTIME_KEYS and key not in self.dispatcher.fallbacks():
                self.dispatcher.register_fallback(key, KernelFunction.from_fallback(fallback))
        self.handles = {}
        self.operators = [
            OperatorName.parse(f"{self.namespace}::{name}") for name in ("f", "f.two", "g")
        ]

    def do(self, place, step):
        site = f"step{place}:{place}"
        match step:
            case ["undo", undone]:
                if undone in self.handles:
                    self.handles.pop(undone).close()
                return
            case ["def", name, signature, analysis]:
                handle = self.define(f"{name}{signature}", analysis, site)
            case ["impl", _, key, _] if key in OLD_NAMES:
                raise DispatchKeyError(f"{key} is a name of an older release")
            case ["impl", name, key, how]:
                handle = self.dispatcher.register_impl(
                    OperatorName.parse(f"{self.namespace}::{name}"),
                    parse_dispatch_key(key),
                    from_step(kernel, how),
                    site=site,
                )
            case ["keyed", _, _, own, key] if not OLD_NAMES.isdisjoint((own, key)):
                raise DispatchKeyError("one of the keys has a name of an older release")
            case ["keyed", name, kind, own, key]:
                with Library(self.namespace, kind, own, dispatcher=Dispatcher()) as checking:
                    checking.impl(name, kernel, key)
                # One of kind DEF stays, as the owner of its namespace.
                library = Library(self.namespace, kind, own, dispatcher=self.dispatcher)
                try:
                    impl = self.dispatcher.register_impl(
                        OperatorName.parse(f"{self.namespace}::{name}"),
                        parse_dispatch_key(key) or library.dispatch_key,
                        from_step(kernel, "signed"),
                        site=site,
                    )
                except RegistrationError:
                    library.close()
                    raise
                handle = contextlib.ExitStack()
                handle.callback(library.close)
                handle.callback(impl.close)
            case ["fallback", key, falls_through]:
                made = from_step(fallback, "fallthrough" if falls_through else "")
                key = parse_dispatch_key(key)
                handle = self.dispatcher.register_fallback(key, made, site=site)
            case ["library"]:
                handle = self.dispatcher.register_library(self.namespace, site=site)
            case ["stray", what]:
                handle = self.stray(what)
        self.handles[place] = handle

    def define(self, text, analysis, site):
        # By way of a Library, which checks more than the dispatcher, for the errors; and
        # by way of the dispatcher for the place.
        with Library(self.namespace, "FRAGMENT", dispatcher=self.dispatcher) as library:
            library.define(text, analysis)
        schema = parse_schema(text).with_namespace(self.namespace)
        analysis = analysis or "FROM_SCHEMA"
        return self.dispatcher.register_def(schema, site=site, alias_analysis=analysis)

    def stray(self, what):
        kind = "FRAGMENT" if what == "def" else "IMPL"
        library = Library(self.namespace, kind, dispatcher=self.dispatcher)
        match what:
            case "def":
                return library.define("elsewhere::f(Tensor x) -> Tensor")
            case "impl":
                return library.impl("elsewhere::f", kernel, "CPU")
            case "fallback":
                return library.fallback(fallback, "FPGA")
        return library.define("f(Tensor x) -> Tensor")

    def state(self, name):
        op = self.dispatcher.find_op(name)
        return op.dump_state() if op is not None else ""

    def table(self, name):
        """The rows, without the fallbacks that were there from the start."""
        op = self.dispatcher.find_op(name)
        lines = op.dump_table().splitlines() if op is not None else []
        return [x for x in lines if not x.endswith("[backend fallback]") or " step" in x]

    def image(self):
        """Everything there is to see."""
        seen = self.dispatcher
        states = {name: self.state(name) for name in seen.operators()}
        return states, seen.libraries(), dict(seen.fallbacks()), seen.find_dangling_impls()


def unfolded(rows):
    return [f"{key}: {text}" for keys, text in rows for key in keys.split()]


CASES = [
    pytest.param(number, program, id=f"{number}-{'-'.join(step[0] for step in program['steps'])}")
    for number, program in enumerate(PROGRAMS)
]


@pytest.mark.parametrize(("number", "program"), CASES)
def test_after_every_step_everything_is_as_pytorch_has_it(number, program):
    replay = Replay(number)
    names = replay.operators
    empty = replay.image()
    states, tables = dict.fromkeys(map(str, names), ""), {str(name): [] for name in names}
    for place, (step, result) in enumerate(zip(program["steps"], program["results"], strict=True)):
        before = replay.image()
        if result["refused"]:
            with pytest.raises(RegistrationError):
                replay.do(place, step)
            assert replay.image() == before
        else:
            replay.do(place, step)
        states |= result["states"]
        tables |= {name: unfolded(rows) for name, rows in result["tables"].items()}
        for name in names:
            assert replay.state(name) == states[str(name)], step
            assert replay.table(name) == tables[str(name)], step
        assert sorted(map(str, replay.dispatcher.find_dangling_impls())) == result["dangling"]
        assert replay.dispatcher.check_invariants() == []
    for handle in replay.handles.values():
        handle.close()
    assert replay.image() == empty


def test_the_programs_have_steps_of_every_kind_done_and_refused():
    seen = Counter(
        (step[0], result["refused"])
        for program in PROGRAMS
        for step, result in zip(program["steps"], program["results"], strict=True)
    )
    kinds = {kind for kind, _ in seen}
    assert kinds == {"def", "impl", "keyed", "fallback", "library", "undo", "stray"}
    assert {kind for kind, refused in seen if refused} == kinds - {"undo"}
    assert {kind for kind, refused in seen if not refused} == kinds - {"stray"}
    assert any(result["dangling"] for program in PROGRAMS for result in program["results"])

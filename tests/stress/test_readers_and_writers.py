"""Eight threads call what two others register and undo: every outcome is explained.

A writer keeps a model of its operator: what is registered, and what a call must lead to. Before it
publishes a change it notes the new outcome, and afterwards that it is published. So a call, which
looks at both notes, may end only in an outcome that was in force at some moment of the call. It
runs for two seconds, or for as many as ``OPDISPATCH_STRESS_SECONDS`` says.
"""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest

from opdispatch import (
    Dispatcher,
    DispatchKey,
    DispatchKeySet,
    KernelFunction,
    NoKernelError,
    OperatorNotFoundError,
    parse_schema,
)
from opdispatch.library.ops import Ops

pytestmark = pytest.mark.slow

K = DispatchKey
SECONDS = float(os.environ.get("OPDISPATCH_STRESS_SECONDS", "2"))
READERS = 8
X = np.ones(2)
CPU = DispatchKeySet.of(K.CPU)

# The keys that can serve a plain array, from the one that wins; and one that never does.
SERVING = (K.CPU, K.CompositeExplicitAutograd, K.CompositeImplicitAutograd)
KEYS = (*SERVING, K.CUDA)
GONE, MISSING = "gone", "missing"


class Story:
    """One operator, its writer, and what calls of it may have led to.

    Only the writer changes it. ``outcomes`` only grows: the outcome of every state so far, the
    last of which may not be published yet; ``published`` is the place of the last one that is.
    """

    def __init__(self, dispatcher, name, seed):
        self.dispatcher = dispatcher
        self.schema = parse_schema(f"t::{name}(Tensor x) -> int")
        self.rng = Random(seed)
        self.definition = None
        self.kernels = {key: [] for key in KEYS}  # newest first: (handle, what it returns)
        self.outcomes = [GONE]
        self.published = 0
        self.made = 0

    def change(self):
        """Publish one to three changes at once."""
        with self.dispatcher.transaction():
            for _ in range(self.rng.randint(1, 3)):
                self.change_one()
            self.outcomes.append(self.outcome())
        self.published = len(self.outcomes) - 1

    def change_one(self):
        kernels = self.kernels[self.rng.choice(KEYS)]
        if self.rng.random() < 0.1:
            self.define_or_undefine()
        elif kernels and self.rng.random() < 0.6:
            kernels.pop(self.rng.randrange(len(kernels)))[0].close()
        else:
            key = next(key for key, known in self.kernels.items() if known is kernels)
            self.made += 1
            number = self.made
            kernel = KernelFunction.from_unboxed(lambda x: number)
            handle = self.dispatcher.register_impl(self.schema.name, key, kernel)
            kernels.insert(0, (handle, number))

    def define_or_undefine(self):
        if self.definition is None:
            self.definition = self.dispatcher.register_def(self.schema)
        else:
            self.definition.close()
            self.definition = None

    def outcome(self):
        """Return the result that the model expects of a call now."""
        if self.definition is None:
            return GONE
        return next((self.kernels[key][0][1] for key in SERVING if self.kernels[key]), MISSING)

    def check(self, call):
        """Call, and fail unless the outcome was in force at some moment of the call."""
        earliest = self.published
        try:
            outcome = call()
        except OperatorNotFoundError:
            outcome = GONE
        except NoKernelError:
            outcome = MISSING
        possible = self.outcomes[earliest:]
        assert outcome in possible, f"{self.schema.name}: {outcome!r} is none of {possible}"

    def calls(self, ops):
        """The ways to call the operator."""
        self.define_or_undefine()
        handle = self.dispatcher.get_schema(self.schema.name)
        self.define_or_undefine()
        namespace, name = ops.t, self.schema.name.unqualified_name

        def boxed():
            stack = [X]
            handle.call_boxed(stack)
            return stack[0]

        def redispatched_boxed():
            stack = [X]
            handle.redispatch_boxed(CPU, stack)
            return stack[0]

        return [
            lambda: handle(X),
            lambda: handle(x=X),
            lambda: handle.redispatch(CPU, X),
            boxed,
            redispatched_boxed,
            lambda: getattr(namespace, name)(X),
            lambda: self.dispatcher.get_schema(self.schema.name)(X),
        ]


@pytest.mark.usefixtures("eager_switching")
def test_every_outcome_of_a_call_was_in_force_while_it_ran():
    dispatcher = Dispatcher()
    ops = Ops(dispatcher)
    stories = [Story(dispatcher, name, seed) for seed, name in enumerate(["f", "g"])]
    checks = [(story, call) for story in stories for call in story.calls(ops)]
    stop = threading.Event()
    end = time.monotonic() + SECONDS

    def write(story):
        try:
            while time.monotonic() < end and not stop.is_set():
                story.change()
        finally:
            stop.set()

    def read(seed):
        rng, count = Random(seed), 0
        try:
            while not stop.is_set():
                story, call = rng.choice(checks)
                story.check(call)
                count += 1
        finally:
            stop.set()
        return count

    with ThreadPoolExecutor(READERS + len(stories)) as pool:
        reading = [pool.submit(read, seed) for seed in range(READERS)]
        writing = [pool.submit(write, story) for story in stories]
        for future in writing:
            future.result(SECONDS + 60)
        counts = [future.result(60) for future in reading]
    assert dispatcher.check_invariants() == []
    assert min(counts) > 0
    for story in stories:
        assert len(set(story.outcomes)) > 2
        story.check(lambda story=story: dispatcher.get_schema(story.schema.name)(X))

"""``get_kernel`` beside PyTorch's: random kernels come and go, and some are held meanwhile.

Asked for are the kernels of every key, and of those that are held, which can be called still.
PyTorch's table, which may be stale, is computed anew before each comparison: see docs/fidelity.md.
"""

import random
import warnings

import numpy as np
import pytest
from golden_file import seeds

import opdispatch
from opdispatch import DispatchKey, DispatchKeySet, KernelFunction, OpdispatchError

torch = pytest.importorskip("torch")

KEYS = [
    *("CPU", "CUDA", "Meta", "XLA", "SparseCPU", "QuantizedCPU", "NestedTensorCPU", "Undefined"),
    *("AutogradCPU", "AutogradCUDA", "AutogradOther", "AutogradXLA", "AutogradNestedTensor"),
    *("AutocastCPU", "ADInplaceOrView", "FuncTorchBatched", "BackendSelect", "Negative"),
]
ALIASES = [
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd", "Autograd"),
    "CompositeExplicitAutogradNonFunctional",
]


def kernel_of(number):
    def kernel(x):
        return number

    return kernel


class Ours:
    refusals = OpdispatchError

    def __init__(self, namespace):
        self.lib = opdispatch.Library(namespace, "DEF")
        self.lib.define("f(Tensor x) -> int")
        self.name = f"{namespace}::f"
        self.libraries = {}

    def impl(self, number, key):
        lib = self.libraries[number] = opdispatch.Library(self.lib.ns, "IMPL")
        lib.impl("f", KernelFunction.from_unboxed(kernel_of(number)), key)

    def destroy(self, number):
        self.libraries.pop(number)._destroy()

    def renew(self):
        """Do nothing: the table is always the recomputed one."""

    def get(self, key):
        return opdispatch.get_kernel(self.name, key)

    def call(self, kernel):
        return kernel.call_boxed(DispatchKeySet.of(DispatchKey.CPU), np.ones(1))


class Theirs(Ours):
    refusals = RuntimeError

    def __init__(self, namespace):
        self.lib = torch.library.Library(namespace, "DEF")
        self.lib.define("f(Tensor x) -> int")
        self.name = f"{namespace}::f"
        self.libraries = {}

    def impl(self, number, key):
        lib = self.libraries[number] = torch.library.Library(self.lib.ns, "IMPL")
        key = "CompositeImplicitAutograd" if key == "Undefined" else key
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if key == "Meta":  # its Python class refuses some: see docs/fidelity.md
                lib.m.impl(self.name, key, kernel_of(number), False)
            else:
                lib.impl("f", kernel_of(number), key, allow_override=True)

    def renew(self):
        """Have every slot that an alias key may fill computed anew: a kernel comes and goes."""
        self.impl("passing", "CompositeImplicitAutograd")
        self.destroy("passing")

    def get(self, key):
        return torch.library.get_kernel(self.name, key)

    def call(self, kernel):
        keys = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        return kernel.call_boxed(keys, torch.ones(1))


def seen(side, key):
    """The number of the kernel for a key; None if there is none, or one of all operators.

    Of these, some are fallthroughs, which PyTorch gives and we refuse.
    """
    try:
        kernel = side.get(key)
    except side.refusals:
        return None
    return side.call(kernel) if __file__ in repr(kernel) else None


def run(side, seed):
    rng = random.Random(seed)
    held, steps = {}, []
    for number in range(rng.randrange(3, 9)):
        if side.libraries and rng.random() < 0.35:
            side.destroy(rng.choice(sorted(side.libraries)))
        else:
            side.impl(number, rng.choice(KEYS + ALIASES))
        side.renew()
        steps.append({key: seen(side, key) for key in [*KEYS, *ALIASES]})
        for key in rng.sample(KEYS, 3):
            if steps[-1][key] is not None:
                held[number, key] = side.get(key)
        for name, kernel in held.items():
            try:
                steps.append((name, side.call(kernel)))
            except side.refusals:
                steps.append((name, "gone"))
    return steps


@pytest.mark.parametrize("seed", seeds(100))
def test_kernels_are_those_of_pytorch(seed):
    namespace = f"safe_kernels_{seed}"
    ours, theirs = run(Ours(namespace), seed), run(Theirs(namespace), seed)
    assert ours == theirs


def test_pytorch_alone_keeps_a_stale_slot_when_a_nested_kernel_is_deregistered():
    found = []
    for side in (Ours("safe_kernels_nested"), Theirs("safe_kernels_nested")):
        side.impl(1, "NestedTensorCPU")
        side.impl(2, "CompositeImplicitAutograd")
        side.destroy(1)
        before = seen(side, "AutogradNestedTensor")
        side.renew()
        found.append((before, seen(side, "AutogradNestedTensor")))
    assert found == [(2, 2), (None, 2)]

"""``get_kernel`` beside PyTorch's: random kernels come and go, and some are held meanwhile.

Asked for are the kernels of every key, and of those that are held, which can be called still. With
other seeds, PyTorch gives kernels of a table that is stale here and there: see docs/fidelity.md.
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
    held, steps, compared = {}, [], [*KEYS, *ALIASES]
    for number in range(rng.randrange(3, 9)):
        if side.libraries and rng.random() < 0.35:
            gone = rng.choice(sorted(side.libraries))
            library = side.libraries.pop(gone)
            library._destroy()
            # PyTorch's slots of these keys may be stale then: see docs/fidelity.md.
            compared = [key for key in compared if "NestedTensor" not in key]
        else:
            side.impl(number, rng.choice(KEYS + ALIASES))
        steps.append({key: seen(side, key) for key in compared})
        for key in rng.sample(KEYS, 3):
            if steps[-1].get(key) is not None:
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

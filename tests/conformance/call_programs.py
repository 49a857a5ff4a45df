"""Programs of calls, and the kernels in them, written so that PyTorch and ours both run them.

A program has operators of one signature, kernels for them, fallbacks, and calls. A kernel notes
that it was visited, and then does one thing:

    ["stop"]            nothing
    ["after", key]      redispatches below a key
    ["call", number]    calls another operator of the program
    ["again", key]      calls the operator once more, with a key excluded
    ["fallthrough"]     is never visited
"""

import random
from typing import Any

# The tensors that calls are made with; "none" is no tensor.
TENSORS = [
    *("plain", "grad", "meta", "meta_grad", "sparse", "sparse_grad", "csr", "nested"),
    *("nested_grad", "quantized", "inference", "mkldnn", "sparse_meta"),
]
# Fallbacks replace these by tensors without the key: they are passed on to other kernels, but not
# to other calls.
LAZY = ["conj", "neg", "zero"]
SIGNATURES = {
    "Tensor x": ["tensor"],
    "Tensor x, Tensor y": ["tensor", "tensor"],
    "Tensor[] x": ["list"],
    "Tensor? x, Tensor y": ["optional", "tensor"],
    "Tensor?[] x": ["optional list"],
    "Tensor[]? x, Tensor y": ["list", "tensor"],
    "Tensor x, Tensor[] y, int n": ["tensor", "list", "int"],
    "int n": ["int"],
    "Any x, Tensor y": ["tensor", "tensor"],
}
RUNTIME = [
    *("CPU", "Meta", "SparseCPU", "SparseCsrCPU", "SparseMeta", "QuantizedCPU", "NestedTensorCPU"),
    *("MkldnnCPU", "AutogradCPU", "AutogradMeta", "AutogradOther", "AutogradNestedTensor"),
    *("CPU", "Meta", "CPU", "AutogradCPU", "ADInplaceOrView", "AutocastCPU", "BackendSelect"),
    *("Python", "Fake", "Functionalize", "Conjugate", "Negative", "ZeroTensor", "Tracer"),
    *("FuncTorchBatched", "FuncTorchVmapMode", "VmapMode", "PythonTLSSnapshot", "PreDispatch"),
]
# In the order in which PyTorch's live table does not go stale.
ALIASES = [
    *("CompositeExplicitAutogradNonFunctional", "CompositeExplicitAutograd", "Autograd"),
    *("CompositeImplicitAutogradNestedTensor", "CompositeImplicitAutograd"),
]
FREE = [
    *("Fake", "CPU", "SparseCPU", "SparseCsrCPU", "QuantizedCPU", "NestedTensorCPU"),
    *("AutogradNestedTensor", "AutocastXLA", "MkldnnCPU", "CUDA", "SparseMeta"),
]
GUARDED = [
    *RUNTIME,
    *("CUDA", "XLA", "Batched", "BatchedNestedTensor", "FuncTorchGradWrapper", "PythonDispatcher"),
    *("FuncTorchDynamicLayerFrontMode", "AutocastCUDA"),
]
MODES = ["inference_mode", "inference_mode(False)", "no_grad", "enable_grad", "autocast"]
MOST_VISITS = 20


def random_program(rng: random.Random) -> dict[str, Any]:
    signature = rng.choice(list(SIGNATURES))
    tensors = TENSORS + LAZY if rng.random() < 0.2 else TENSORS
    nested = tensors is TENSORS
    operators = [_kernels(rng, number, nested) for number in range(3)]
    return {
        "signature": signature,
        "operators": operators,
        "fallbacks": [
            [key, rng.choice([["stop"], ["after", key], ["after", key], ["fallthrough"]])]
            for key in sorted(set(rng.choices(FREE, k=rng.choice([0, 0, 1, 2]))))
        ],
        "calls": [_call(rng, signature, tensors, nested) for _ in range(8)],
    }


def _kernels(rng: random.Random, number: int, nested: bool) -> list[list[Any]]:
    keys = dict.fromkeys(rng.choices(RUNTIME, k=rng.randrange(14)))
    kernels = [[key, _action(rng, number, key, nested)] for key in keys]
    for alias in ALIASES:
        if rng.random() < 0.25:
            below = [["after", "AutogradOther"]] if alias == "Autograd" else [["stop"]]
            calls = [["call", rng.randrange(number + 1, 3)]] if nested and number < 2 else []
            kernels.append([alias, rng.choice([*below, *below, *calls, *calls])])
    return kernels


def _action(rng: random.Random, number: int, key: str, nested: bool) -> list[Any]:
    choices: list[list[Any]] = [["stop"], *[["after", key]] * 4, ["fallthrough"]]
    choices.append(["after", rng.choice(["ADInplaceOrView", "BackendSelect", "Python", key])])
    if nested:
        choices.append(["again", key])
        if number < 2:
            choices.append(["call", rng.randrange(number + 1, 3)])
    return rng.choice(choices)


def _call(rng: random.Random, signature: str, tensors: list[str], nested: bool) -> dict[str, Any]:
    arguments = [_argument(rng, kind, tensors) for kind in SIGNATURES[signature]]
    modes = []
    for _ in range(rng.choice([0, 0, 1, 1, 2, 3])):
        # PyTorch replaces lazy tensors by calling operators of its own: no guard must stop them.
        guards = ["include", "include", "exclude", "exclude", "force"] if nested else []
        mode = rng.choice([*MODES, *guards])
        some = [rng.sample(GUARDED, rng.randrange(3)) for _ in range(2)]
        one = {"include": [[rng.choice(GUARDED)], []], "exclude": [[], [rng.choice(GUARDED)]]}
        modes.append([mode, *one.get(mode, some if mode == "force" else [[], []])])
    how = ["call"] if rng.random() < 0.75 else ["redispatch", rng.choice(GUARDED)]
    if rng.random() < 0.3 and how[0] == "redispatch":
        how.append(rng.choice(GUARDED))
    return {"arguments": arguments, "modes": modes, "how": how}


def _argument(rng: random.Random, kind: str, tensors: list[str]) -> Any:
    one = rng.choice(tensors)
    match kind:
        case "int":
            return 7
        case "optional":
            return rng.choice([None, one])
        case "list":
            return [rng.choice(tensors) for _ in range(rng.randrange(3))]
        case "optional list":
            return [rng.choice([None, *tensors]) for _ in range(rng.randrange(4))]
    return one


class World:
    """A dispatcher in which programs run; what is the same for PyTorch and for ours."""

    def __init__(self) -> None:
        self.visits: list[str] = []

    def word_after(self, key: str) -> int:
        raise NotImplementedError

    def local_words(self) -> tuple[int, int]:
        raise NotImplementedError

    def excluding(self, key: str) -> Any:
        raise NotImplementedError

    def call(self, number: int, args: tuple) -> None:
        raise NotImplementedError

    def redispatch(self, number: int, word: int, args: tuple) -> None:
        raise NotImplementedError

    def kernel(self, label: str, number: int | None, action: list[Any]) -> Any:
        """A kernel for the operator of that number; a fallback for all if it is None."""

        def kernel(keys: Any, *args: Any) -> None:
            own = number
            if own is None:
                own, args = self.number_of(args[0]), args[1:]
            included, excluded = self.local_words()
            word = keys.raw_repr()
            self.visits.append(f"{own} {label} {word:x} {included:x} {excluded:x}")
            if len(self.visits) >= MOST_VISITS:
                return
            match action:
                case ["after", key]:
                    self.redispatch(own, word & self.word_after(key), args)
                case ["call", other]:
                    self.call(other, args)
                case ["again", key]:
                    with self.excluding(key):
                        self.call(own, args)

        return kernel

    def number_of(self, op: Any) -> int:
        raise NotImplementedError

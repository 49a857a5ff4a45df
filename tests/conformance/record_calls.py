"""Records which kernels the calls of a real PyTorch visit in golden/calls.json.gz.

Run it with a Python that has the CPU build of torch; the test suite itself does not need one:

    python tests/conformance/record_calls.py

Each program of ``call_programs.py`` runs in a process of its own, since its kernels and fallbacks
are PyTorch's from then on, and since some calls end the process: those programs are left
out, and counted in ``crashed``. A call's ``visits`` are the kernels in order, each as

    OPERATOR KEY KEYSET INCLUDED EXCLUDED      (the last three are hexadecimal words)

and its ``outcome`` is null or what PyTorch raised: a kind, and the key that it names. ``tensors``
has the key set of each tensor.
"""

import contextlib
import json
import os
import random
import re
import warnings
from typing import Any

import torch
from call_programs import LAZY, TENSORS, World, random_program
from golden_file import GOLDEN, SCALE, SEED, write_golden

C = torch._C
Key, Set = C.DispatchKey, C.DispatchKeySet
PROGRAMS = 420 * SCALE


def make_tensors() -> dict[str, torch.Tensor]:
    ones = torch.ones(2, 2)
    with torch.inference_mode():
        inference = torch.ones(2)
    nested = [torch.ones(2), torch.ones(3)]
    return {
        "plain": ones,
        "grad": torch.ones(2, requires_grad=True),
        "meta": torch.ones(2, device="meta"),
        "meta_grad": torch.ones(2, device="meta", requires_grad=True),
        "sparse": ones.to_sparse(),
        "sparse_grad": ones.to_sparse().requires_grad_(),
        "csr": ones.to_sparse_csr(),
        "nested": torch.nested.nested_tensor(nested),
        "nested_grad": torch.nested.nested_tensor(nested, requires_grad=True),
        "quantized": torch.quantize_per_tensor(ones, 0.1, 0, torch.quint8),
        "inference": inference,
        "mkldnn": ones.to_mkldnn(),
        "sparse_meta": ones.to_sparse().to("meta"),
        "conj": torch.conj(torch.ones(2, dtype=torch.complex64)),
        "neg": torch._neg_view(torch.ones(2)),
        "zero": torch._efficientzerotensor((2,)),
    }


class TorchWorld(World):
    def __init__(self, program: dict[str, Any]) -> None:
        super().__init__()
        fallbacks = torch.library.Library("_", "IMPL")
        for key, action in program["fallbacks"]:
            fallbacks.fallback(self.made(f"_{key}", None, action), key, with_keyset=True)
        library = torch.library.Library("calls", "DEF")
        for number, kernels in enumerate(program["operators"]):
            library.define(f"f{number}({program['signature']}) -> ()")
            for key, action in kernels:
                kernel = self.made(key, number, action)
                library.impl(f"f{number}", kernel, key, with_keyset=True)
        self.libraries = [fallbacks, library]
        self.ops = [getattr(torch.ops.calls, f"f{n}").default for n in range(3)]

    def made(self, label: str, number: int | None, action: list[Any]) -> Any:
        if action == ["fallthrough"]:
            return torch.library.fallthrough_kernel
        return self.kernel(label, number, action)

    def word_after(self, key: str) -> int:
        return C._dispatch_keyset_full_after(C._dispatch_key_parse(key)).raw_repr()

    def local_words(self) -> tuple[int, int]:
        sets = C._dispatch_tls_local_include_set(), C._dispatch_tls_local_exclude_set()
        return sets[0].raw_repr(), sets[1].raw_repr()

    def excluding(self, key: str) -> Any:
        return C._ExcludeDispatchKeyGuard(key_set(key))

    def call(self, number: int, args: tuple) -> None:
        self.ops[number](*args)

    def redispatch(self, number: int, word: int, args: tuple) -> None:
        self.ops[number].redispatch(Set.from_raw_repr(word), *args)

    def number_of(self, op: Any) -> int:
        return self.ops.index(op)


def key_set(*keys: str) -> Set:
    made = Set(Key.Undefined)
    for key in keys:
        made = made.add(C._dispatch_key_parse(key))
    return made


def guard_of(mode: str, included: list[str], excluded: list[str]) -> Any:
    match mode:
        case "include":
            return C._IncludeDispatchKeyGuard(C._dispatch_key_parse(included[0]))
        case "exclude":
            return C._ExcludeDispatchKeyGuard(key_set(*excluded))
        case "force":
            return C._ForceDispatchKeyGuard(key_set(*included), key_set(*excluded))
        case "inference_mode":
            return torch.inference_mode()
        case "inference_mode(False)":
            return torch.inference_mode(False)
        case "autocast":
            return torch.autocast("cpu")
    return getattr(torch, mode)()


def outcome_of(error: Exception) -> list[str]:
    text = str(error)
    if found := re.search(r"'calls::f\d' with arguments from the '(\w+)' backend", text):
        return ["no kernel", found[1]]
    if "There were no tensor arguments" in text:
        return ["no kernel", "Undefined"]
    if "fallthrough_kernel was executed" in text:
        return ["fallthrough"]
    if "kernels registered to both" in text:
        return ["ambiguous"]
    return ["refused", type(error).__name__, text[:60]]


def run(program: dict[str, Any], tensors: dict[str, torch.Tensor]) -> list[dict[str, Any]]:
    world = TorchWorld(program)
    said = []
    for call in program["calls"]:
        world.visits.clear()
        args = [values_of(a, tensors) for a in call["arguments"]]
        outcome = None
        try:
            with contextlib.ExitStack() as stack:
                for mode in call["modes"]:
                    stack.enter_context(guard_of(*mode))
                if call["how"] == ["call"]:
                    world.call(0, args)
                else:
                    world.redispatch(0, key_set(*call["how"][1:]).raw_repr(), args)
        except (RuntimeError, NotImplementedError) as error:
            outcome = outcome_of(error)
        said.append({"visits": list(world.visits), "outcome": outcome})
    return said


def values_of(argument: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(argument, list):
        return [values_of(a, tensors) for a in argument]
    return tensors[argument] if isinstance(argument, str) else argument


def run_alone(program: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Any:
    """Return the result of ``run`` from a process of its own; None if that crashed."""
    reader, writer = os.pipe()
    if (child := os.fork()) == 0:
        os.close(reader)
        try:
            with os.fdopen(writer, "w") as pipe:
                json.dump(run(program, tensors), pipe)
        except BaseException as error:
            print("a program failed:", repr(error)[:300], program, flush=True)
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    status = os.waitpid(child, 0)[1]
    if os.WIFEXITED(status) and os.WEXITSTATUS(status):
        raise SystemExit("a program could not be run")
    return json.loads(text) if status == 0 else None


def main() -> None:
    warnings.simplefilter("ignore")
    # Otherwise the fallbacks of autograd look for a tensor to warn about, by calling operators.
    C._set_autograd_fallback_mode("nothing")
    rng = random.Random(SEED)
    tensors = make_tensors()
    assert list(tensors) == TENSORS + LAZY
    programs, crashed = [], 0
    for _ in range(PROGRAMS):
        program = random_program(rng)
        said = run_alone(program, tensors)
        if said is None:
            crashed += 1
            continue
        for call, answer in zip(program["calls"], said, strict=True):
            call.update(answer)
        programs.append(program)
    calls = [call for program in programs for call in program["calls"]]
    visits = sum(len(call["visits"]) for call in calls)
    print(f"{len(programs)} programs, {len(calls)} calls, {visits} visits, {crashed} crashed")
    content = {
        "tensors": {name: C._dispatch_keys(t).raw_repr() for name, t in tensors.items()},
        "crashed": crashed,
        "programs": programs,
    }
    write_golden(GOLDEN / "calls.json.gz", __file__, torch.__version__, SEED, content)


if __name__ == "__main__":
    main()

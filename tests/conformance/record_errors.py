"""Records the errors of a real PyTorch in golden/errors.json.gz.

Run it with a Python that has the CPU build of torch; the test suite itself does not need one:

    python tests/conformance/record_errors.py

``cases`` has for each name the class of the error and its text, up to the C++ stack.
"""

from collections.abc import Callable

import torch
from golden_file import GOLDEN, SEED, write_golden
from record_tables import kernel

C = torch._C
Key = C.DispatchKey


def library(kind: str, ns: str = "errors", key: str = "", line: int = 1) -> object:
    return C._dispatch_library(kind, ns, key, "lib.py", line)


def text_of(failing: Callable[[], object]) -> dict:
    try:
        failing()
    except (RuntimeError, AttributeError) as error:
        text = str(error).split("\nException raised")[0]
        return {"class": type(error).__name__, "text": text}
    raise AssertionError("PyTorch did not refuse")


def main() -> None:
    owner = library("DEF")
    for signature in ("gpu(Tensor x) -> Tensor", "none(int x) -> int", "fall(Tensor x) -> Tensor"):
        owner.def_(signature)
    owner.def_("mixed(Tensor x) -> Tensor")
    impl = library("IMPL", line=3)
    impl.impl("gpu", Key.CUDA, kernel)
    impl.impl("fall", Key.CPU, torch.library.fallthrough_kernel)
    # In this order: the other way round PyTorch's live table is stale, and nothing is ambiguous.
    impl.impl("mixed", Key.SparseCPU, kernel)
    impl.impl("mixed", Key.CompositeImplicitAutograd, kernel)
    impl.impl_t_t("late", "CPU", "registered at lib.py:4")
    ops, cpu = torch.ops.errors, torch.ones(1)
    other = C.DispatchKeySet(Key.AutogradOther)
    cases = {
        "missing CPU": lambda: ops.gpu(cpu),
        "missing SparseCPU": lambda: ops.gpu(cpu.to_sparse()),
        "no tensor": lambda: ops.none(1),
        "Meta": lambda: ops.gpu(torch.ones(1, device="meta")),
        "ambiguous": lambda: ops.mixed.default.redispatch(other, cpu),
        "fallthrough": lambda: ops.fall.default.redispatch(C.DispatchKeySet(Key.CPU), cpu),
        "not found": lambda: C._dispatch_find_schema_or_throw("errors::nothing", ""),
        "defined twice": lambda: library("FRAGMENT", line=2).def_("gpu(Tensor x) -> Tensor"),
        "owned twice": lambda: library("DEF", line=2),
        "kernel mismatch": lambda: library("IMPL", line=2).impl_t_t(
            "none", "CPU", "registered at lib.py:2"
        ),
        "definition mismatch": lambda: library("FRAGMENT", line=2).def_("late(int x) -> Tensor"),
        "fallback twice": fallback_twice,
        "wrong key": lambda: library("IMPL", key="Nowhere"),
        "wrong namespace": lambda: library("FRAGMENT").def_("elsewhere::f(Tensor x) -> Tensor"),
        "defined in IMPL": lambda: library("IMPL").def_("f(Tensor x) -> Tensor"),
        "fallback of a namespace": lambda: library("IMPL").fallback(Key.CPU, kernel),
        "no schema": lambda: library("FRAGMENT").def_("f"),
    }
    content = {
        "cases": {name: text_of(failing) for name, failing in cases.items()},
        "dangling": [t for t in C._dispatch_find_dangling_impls() if "errors::" in t],
    }
    write_golden(GOLDEN / "errors.json.gz", __file__, torch.__version__, SEED, content)


def fallback_twice() -> None:
    first = library("IMPL", "_", line=1)
    first.fallback(Key.CPU, kernel)
    try:
        library("IMPL", "_", line=2).fallback(Key.CPU, kernel)
    finally:
        first.reset()


if __name__ == "__main__":
    main()

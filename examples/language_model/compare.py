"""How far the operators of ``lm`` are from PyTorch's: ``python compare.py``, where it is installed.

The sizes are those of a layer of a model with a billion parameters.
"""

import lm  # noqa: F401  registers the operators
import numpy as np
import torch

from opdispatch import ops

F = torch.nn.functional


def normal(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


X, GAIN, BIAS = normal(512, 2048), normal(2048, seed=1), normal(2048, seed=2)
GATE, UP, MATRIX = normal(512, 8192), normal(512, 8192, seed=1), normal(8192, 2048) / 45
HEADS = normal(1, 32, 512, 64), normal(1, 8, 512, 64, seed=1), normal(1, 8, 512, 64, seed=2)

# An operator, its arguments and options, and what PyTorch calculates.
CASES = [
    ("rms_norm", (X, GAIN), {}, lambda x, w: F.rms_norm(x, w.shape, w, 1e-6)),
    ("layer_norm", (X, GAIN, BIAS), {}, lambda x, w, b: F.layer_norm(x, w.shape, w, b)),
    ("softmax", (X,), {}, lambda x: F.softmax(x, -1)),
    ("silu", (X,), {}, F.silu),
    ("swiglu", (GATE, UP), {}, lambda gate, up: F.silu(gate) * up),
    ("linear", (X, MATRIX), {}, F.linear),
    *(
        ("scaled_dot_product_attention", HEADS, options, F.scaled_dot_product_attention)
        for options in ({"enable_gqa": True}, {"enable_gqa": True, "is_causal": True})
    ),
]


def main():
    print("| operator | options | largest result | max abs difference |")
    print("| --- | --- | ---: | ---: |")
    for name, arrays, options, reference in CASES:
        ours = getattr(ops.lm, name)(*arrays, **options)
        theirs = reference(*map(torch.from_numpy, arrays), **options).numpy()
        difference, largest = np.abs(ours - theirs).max(), np.abs(theirs).max()
        print(f"| `{name}` | {', '.join(options)} | {largest:.2g} | {difference:.1e} |")


if __name__ == "__main__":
    main()

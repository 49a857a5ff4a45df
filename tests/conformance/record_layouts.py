"""Records what a real PyTorch says of other layouts than the dense one in golden/layouts.json.gz.

Run it with a Python that has the CPU build of torch; the test suite itself does not need one:

    python tests/conformance/record_layouts.py

``tensors`` has the key set and the properties of one tensor of each layout; ``sparse`` what sparse
tensors are made of and what becomes of them, or that they are refused; ``quantized`` elements, as
32-bit words, before and after quantization, most of them near the middle between two integers.
"""

import random
import struct
import warnings
from typing import Any

import torch
from golden_file import GOLDEN, SCALE, SEED, write_golden

QUANTIZATIONS = 100 * SCALE
SPARSE = 60 * SCALE
FLAGS = ("is_sparse", "is_sparse_csr", "is_quantized", "is_nested")
DTYPES = {"quint8": (0, 255), "qint8": (-128, 127), "qint32": (-(2**31), 2**31 - 1)}


def describe(tensor: torch.Tensor) -> dict[str, Any]:
    said: dict[str, Any] = {flag: bool(getattr(tensor, flag)) for flag in FLAGS}
    said["layout"] = str(tensor.layout).removeprefix("torch.")
    said["keys"] = torch._C._dispatch_keys(tensor).raw_repr()
    said["requires_grad"] = tensor.requires_grad
    return said


def tensors() -> dict[str, torch.Tensor]:
    ones = torch.ones(2, 2)
    components = [torch.ones(2), torch.ones(3)]
    return {
        "dense": ones,
        "sparse_coo": ones.to_sparse(),
        "sparse_coo grad": ones.to_sparse().requires_grad_(),
        "sparse_csr": ones.to_sparse_csr(),
        "sparse_csr grad": ones.to_sparse_csr().requires_grad_(),
        "quantized": torch.quantize_per_tensor(ones, 0.1, 0, torch.quint8),
        "nested": torch.nested.nested_tensor(components),
        "nested grad": torch.nested.nested_tensor(components, requires_grad=True),
    }


def random_coo(rng: random.Random) -> dict[str, Any]:
    shape = [rng.randrange(1, 5) for _ in range(rng.randrange(1, 4))]
    count = rng.randrange(6)
    slack = rng.random() < 0.3
    indices = [[rng.randrange(extent + slack) for _ in range(count)] for extent in shape]
    values = [
        float(rng.randrange(-5, 6)) for _ in range(count - (rng.random() < 0.1 and count > 0))
    ]
    case: dict[str, Any] = {"indices": indices, "values": values, "shape": shape}
    try:
        tensor = torch.sparse_coo_tensor(
            torch.tensor(indices, dtype=torch.int64).reshape(len(shape), -1),
            torch.tensor(values),
            shape,
            check_invariants=True,
        )
    except RuntimeError:
        return {**case, "refused": True}
    coalesced = tensor.coalesce()
    return {
        **case,
        "dense": tensor.to_dense().tolist(),
        "coalesced": [coalesced.indices().tolist(), coalesced.values().tolist()],
    }


def random_csr(rng: random.Random) -> dict[str, Any]:
    rows, columns = rng.randrange(1, 4), rng.randrange(1, 5)
    dense = torch.tensor(
        [[float(rng.choice([0, 0, 1, 2])) for _ in range(columns)] for _ in range(rows)]
    )
    tensor = dense.to_sparse_csr()
    parts = [tensor.crow_indices().tolist(), tensor.col_indices().tolist()]
    case: dict[str, Any] = {"dense": dense.tolist(), "values": tensor.values().tolist()}
    case["parts"] = [list(part) for part in parts]
    # Another copy, most times with one number changed.
    changed = [list(part) for part in parts]
    part = rng.choice([part for part in changed if part])
    part[rng.randrange(len(part))] += rng.choice([-1, 0, 1, 2])
    case["changed"] = changed
    if not all(0 <= place <= len(changed[1]) for place in changed[0]):
        # Not asked: PyTorch 2.13 looks at those columns before it refuses them, and may crash.
        return {**case, "outcome": "refused"}
    try:
        other = torch.sparse_csr_tensor(
            torch.tensor(changed[0]),
            torch.tensor(changed[1], dtype=torch.int64),
            tensor.values(),
            tuple(dense.shape),
            check_invariants=True,
        )
    except RuntimeError as error:
        # Columns in order and different: SciPy's matrices need not have them so, and ours neither.
        # A row with more values than there are columns has some of them twice.
        is_full = "<= ncols" in str(error) and changed[0] == sorted(changed[0])
        is_unordered = is_full or "sorted and distinct" in str(error)
        case["outcome"] = "unordered" if is_unordered else "refused"
    else:
        case["outcome"] = other.to_dense().tolist()
    return case


def random_quantization(rng: random.Random) -> dict[str, Any]:
    dtype = rng.choice(list(DTYPES))
    low, high = DTYPES[dtype]
    low, high = max(low, -100_000), min(high, 100_000)
    scale = 10 ** rng.uniform(-4, 2)
    zero_point = rng.randint(low, high)
    elements = [
        rng.choice([rng.randrange(-300, 300) + 0.5, rng.gauss(0, 100), rng.gauss(0, 1e6)]) * scale
        for _ in range(rng.randrange(1, 80))
    ]
    elements += rng.choice([[], [float("inf"), float("-inf"), 1e30, -1e30, 0.0]])
    if rng.random() < 0.1:
        elements.append(float("nan"))
    real = torch.tensor(elements, dtype=torch.float32)
    tensor = torch.quantize_per_tensor(real, scale, zero_point, getattr(torch, dtype))
    return {
        "dtype": dtype,
        "scale": scale.hex(),
        "zero_point": zero_point,
        "real": words_of(real),
        "integers": tensor.int_repr().tolist(),
        "dequantized": words_of(tensor.dequantize()),
        "q_scale": tensor.q_scale().hex(),
    }


def words_of(real: torch.Tensor) -> list[int]:
    return [struct.unpack("<I", struct.pack("<f", x))[0] for x in real.tolist()]


def refused_zero_points() -> dict[str, list[bool]]:
    """Of each dtype, whether zero points just inside and outside of its limits are refused."""
    found = {}
    for dtype, (low, high) in DTYPES.items():
        found[dtype] = []
        for zero_point in (low - 1, low, high, high + 1):
            try:
                torch.quantize_per_tensor(torch.ones(1), 1.0, zero_point, getattr(torch, dtype))
            except RuntimeError:
                found[dtype].append(True)
            else:
                found[dtype].append(False)
    return found


def main() -> None:
    warnings.simplefilter("ignore")
    rng = random.Random(SEED)
    nested = torch.nested.nested_tensor_from_jagged(
        torch.arange(6.0).reshape(3, 2), torch.tensor([0, 0, 2, 3])
    )
    strided = torch.nested.nested_tensor(list(nested.unbind()))
    content = {
        "tensors": {name: describe(tensor) for name, tensor in tensors().items()},
        "coo": [random_coo(rng) for _ in range(SPARSE)],
        "csr": [random_csr(rng) for _ in range(SPARSE)],
        "quantized": [random_quantization(rng) for _ in range(QUANTIZATIONS)],
        "zero_points": refused_zero_points(),
        "nested": {
            "layout": str(nested.layout).removeprefix("torch."),
            "components": [each.tolist() for each in nested.unbind()],
            "padded": strided.to_padded_tensor(-1.0).tolist(),
            "dimensions": nested.dim(),
            "elements": nested.numel(),
        },
    }
    write_golden(GOLDEN / "layouts.json.gz", __file__, torch.__version__, SEED, content)


if __name__ == "__main__":
    main()

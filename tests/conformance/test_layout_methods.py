"""Methods of sparse, quantized and nested tensors beside PyTorch's, called alike."""

import numpy as np
import pytest
from golden_file import SCALE, SEED

import opdispatch

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of PyTorch, about prototypes


def drawn(rng):
    """Draw a tensor of each side: sparse_coo, sparse_csr, quantized or dense."""
    shape = tuple(int(n) for n in rng.integers(1, 4, rng.integers(1, 4)))
    kind = rng.choice(["coo", "coo", "csr", "quantized", "strided"])
    if kind == "csr":
        shape = (shape * 2)[:2]
    dense = np.where(rng.random(shape) < 0.5, 0.0, rng.integers(1, 9, shape)).astype(np.float32)
    if kind == "coo":
        count = int(rng.integers(0, 6))
        indices = np.stack([rng.integers(0, extent, count) for extent in shape])
        values = rng.integers(1, 9, count).astype(np.float64)
        given = indices, values, shape
        return opdispatch.sparse_coo_tensor(*given), torch.sparse_coo_tensor(
            *map(torch.as_tensor, given[:2]), shape
        )
    ours, theirs = opdispatch.Tensor(dense), torch.tensor(dense)
    if kind == "csr":
        return ours.to_sparse_csr(), theirs.to_sparse_csr()
    if kind == "quantized":
        return (
            opdispatch.quantize_per_tensor(ours, 0.5, 3, np.uint8),
            torch.quantize_per_tensor(theirs, 0.5, 3, torch.quint8),
        )
    return ours, theirs


def facts(tensor):
    """Return the layout of a tensor, and what it is made of."""
    layout = str(tensor.layout).removeprefix("torch.")
    if layout == "sparse_coo":
        parts = tensor._indices(), tensor._values()
    elif layout == "sparse_csr":
        parts = tensor.crow_indices(), tensor.col_indices(), tensor.values()
    elif tensor.is_quantized:
        parts = (tensor.int_repr(),)
        layout = layout, tensor.q_scale(), tensor.q_zero_point()
    else:
        parts = (tensor,)
    return layout, tuple(tensor.shape), [np.asarray(part).tolist() for part in parts]


def outcome(call, tensor):
    try:
        result = call(tensor)
    except (RuntimeError, TypeError, IndexError):
        return "refused"
    return [facts(each) for each in result] if isinstance(result, tuple) else facts(result)


CALLS = {
    "_indices": lambda x: x._indices(),
    "_values": lambda x: x._values(),
    "to_dense": lambda x: x.to_dense(),
    **{f"unbind {dim}": lambda x, dim=dim: x.unbind(dim) for dim in range(-4, 4)},
    "unbind": lambda x: x.unbind(),
}


def test_methods_give_what_pytorchs_give_and_refuse_alike():
    rng = np.random.default_rng([SEED, 7])
    for _ in range(40 * SCALE):
        ours, theirs = drawn(rng)
        for name, call in CALLS.items():
            want = outcome(call, theirs)
            if want == "refused" and ours.is_sparse_csr and name in ("unbind 1", "unbind -1"):
                continue  # of columns of which PyTorch has no view: see docs/fidelity.md
            assert outcome(call, ours) == want, (name, facts(theirs))


def test_columns_of_a_csr_matrix_without_zeros_are_refused_by_pytorch_alone():
    dense = np.array([[0, 2], [3, 2], [0, 4]], np.float32)
    assert outcome(CALLS["unbind 1"], torch.tensor(dense).to_sparse_csr()) == "refused"
    columns = opdispatch.Tensor(dense).to_sparse_csr().unbind(1)
    assert [np.asarray(each.to_dense()).tolist() for each in columns] == dense.T.tolist()


def test_a_nested_tensor_is_unbound_along_its_first_dimension_alone():
    parts = [np.ones((2, 3)), np.zeros((4, 3))]
    ours = opdispatch.nested_tensor(parts)
    theirs = torch.nested.nested_tensor(list(map(torch.tensor, parts)))
    for name in ("unbind", "unbind 0", "unbind 1", "_indices", "_values"):
        assert outcome(CALLS[name], ours) == outcome(CALLS[name], theirs)


def test_a_jagged_tensor_is_not_made_dense():
    jagged = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)
    assert outcome(CALLS["to_dense"], jagged) == "refused"
    ours = opdispatch.nested_tensor([np.ones(2), np.ones(3)])
    assert ours.layout == "jagged"
    assert outcome(CALLS["to_dense"], ours) == "refused"

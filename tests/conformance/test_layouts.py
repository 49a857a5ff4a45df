"""Sparse, quantized and nested tensors agree with PyTorch's recorded ones."""

from __future__ import annotations

import numpy as np
import pytest
from golden_file import read_golden

from opdispatch import (
    ArgumentError,
    Tensor,
    nested_tensor,
    nested_tensor_from_jagged,
    quantize_per_tensor,
    sparse_coo_tensor,
    sparse_csr_tensor,
)

GOLDEN = read_golden("layouts.json.gz")
ONES = np.ones((2, 2), np.float32)


def made(name: str) -> Tensor:
    requires_grad = name.endswith("grad")
    match name.removesuffix(" grad"):
        case "dense":
            return Tensor(ONES)
        case "sparse_coo":
            return Tensor(Tensor(ONES).to_sparse().array, requires_grad=requires_grad)
        case "sparse_csr":
            return Tensor(Tensor(ONES).to_sparse_csr().array, requires_grad=requires_grad)
        case "quantized":
            return quantize_per_tensor(ONES, 0.1, 0, "quint8")
        case "nested":
            components = [np.ones(2, np.float32), np.ones(3, np.float32)]
            return nested_tensor(components, requires_grad=requires_grad)
    raise AssertionError(name)


@pytest.mark.parametrize("name", GOLDEN["tensors"])
def test_keys_and_properties(name: str):
    said, tensor = GOLDEN["tensors"][name], made(name)
    assert tensor.key_bits == said.pop("keys")
    if tensor.is_nested:  # whose layout is the one of PyTorch's nested tensors with offsets
        assert (said.pop("layout"), tensor.layout) == ("strided", GOLDEN["nested"]["layout"])
    assert {what: getattr(tensor, what) for what in said} == said


def test_sparse_coo_tensors():
    outcomes = set()
    for case in GOLDEN["coo"]:
        indices = np.array(case["indices"], np.int64).reshape(len(case["shape"]), -1)
        values = np.array(case["values"], np.float32)
        outcomes.add("refused" in case)
        if "refused" in case:
            with pytest.raises(ArgumentError):
                sparse_coo_tensor(indices, values, case["shape"])
            continue
        tensor = sparse_coo_tensor(indices, values, case["shape"])
        assert np.asarray(tensor.to_dense()).tolist() == case["dense"]
        coalesced = tensor.coalesce()
        order = np.lexsort(np.asarray(coalesced.indices())[::-1])
        found = [np.asarray(coalesced.indices())[:, order], np.asarray(coalesced.values())[order]]
        assert [each.tolist() for each in found] == case["coalesced"]
    assert outcomes == {True, False}


def test_sparse_csr_tensors():
    outcomes = set()
    for case in GOLDEN["csr"]:
        dense, values = np.array(case["dense"], np.float32), np.array(case["values"], np.float32)
        tensor = Tensor(dense).to_sparse_csr()
        parts = [np.asarray(tensor.crow_indices()), np.asarray(tensor.col_indices())]
        assert [part.tolist() for part in parts] == case["parts"]
        assert np.asarray(tensor.values()).tolist() == case["values"]
        changed = [np.array(part, np.int64) for part in case["changed"]]
        outcome = case["outcome"]
        outcomes.add(outcome if isinstance(outcome, str) else "made")
        if outcome == "refused":
            with pytest.raises(ArgumentError):
                sparse_csr_tensor(*changed, values, dense.shape)
        elif outcome != "unordered":
            other = sparse_csr_tensor(*changed, values, dense.shape)
            assert np.asarray(other.to_dense()).tolist() == outcome
    assert outcomes >= {"refused", "made"}


def test_quantized_elements_are_the_same_to_the_bit():
    for case in GOLDEN["quantized"]:
        real = np.array(case["real"], np.uint32).view(np.float32)
        scale = float.fromhex(case["scale"])
        tensor = quantize_per_tensor(real, scale, case["zero_point"], case["dtype"])
        assert np.asarray(tensor.int_repr()).tolist() == case["integers"], case
        # PyTorch subtracts in 32 bits: beyond them its numbers have the wrong sign, and ours not.
        steps = np.array(case["integers"], np.int64) - case["zero_point"]
        is_right = np.abs(steps) < 2**31
        words = np.asarray(tensor.dequantize()).view(np.uint32)
        theirs = np.array(case["dequantized"], np.uint32)
        np.testing.assert_array_equal(words[is_right], theirs[is_right])
        beyond = ~is_right
        np.testing.assert_array_equal(
            np.asarray(tensor.dequantize())[beyond] > 0, steps[beyond] > 0
        )
        assert tensor.q_scale().hex() == case["q_scale"]


@pytest.mark.parametrize("dtype", GOLDEN["zero_points"])
def test_zero_points_that_are_refused(dtype: str):
    info = np.iinfo(dtype.removeprefix("q"))
    limits = (int(info.min) - 1, int(info.min), int(info.max), int(info.max) + 1)
    for zero_point, is_refused in zip(limits, GOLDEN["zero_points"][dtype], strict=True):
        if is_refused:
            with pytest.raises(ArgumentError, match="zero_point"):
                quantize_per_tensor(ONES, 1.0, zero_point, dtype)
        else:
            quantize_per_tensor(ONES, 1.0, zero_point, dtype)


def test_nested_tensors():
    said = GOLDEN["nested"]
    values = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    tensor = nested_tensor_from_jagged(values, np.array([0, 0, 2, 3]))
    assert tensor.layout == said["layout"]
    assert [np.asarray(each).tolist() for each in tensor.unbind()] == said["components"]
    assert np.asarray(tensor.to_padded_tensor(-1.0)).tolist() == said["padded"]
    assert (tensor.ndim, tensor.size) == (said["dimensions"], said["elements"])

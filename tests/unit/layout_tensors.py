"""A small tensor of each layout."""

import numpy as np

from opdispatch import nested_tensor, quantize_per_tensor, sparse_coo_tensor, sparse_csr_tensor

DENSE = np.array([[0.0, 2.0, 0.0], [3.0, 0.0, 4.0]])


def coo():
    return sparse_coo_tensor([[0, 1, 1], [1, 0, 2]], [2.0, 3.0, 4.0], (2, 3))


def csr():
    return sparse_csr_tensor([0, 1, 3], [1, 0, 2], [2.0, 3.0, 4.0], (2, 3))


def quantized():
    return quantize_per_tensor(DENSE, 0.5, 10, "quint8")


def nested():
    return nested_tensor([np.ones((2, 3)), np.zeros((1, 3))])


ALL = [coo, csr, quantized, nested]

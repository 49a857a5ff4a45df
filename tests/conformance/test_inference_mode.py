"""Which tensors are inference tensors: made in the mode or outside, of such tensors or others."""

import copy

import numpy as np
import pytest

import opdispatch
from opdispatch import Tensor
from opdispatch import array_api as xp

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of layouts that are in beta


class Ours:
    tensor = staticmethod(xp.asarray)
    mode = staticmethod(opdispatch.inference_mode)
    coo = staticmethod(opdispatch.sparse_coo_tensor)
    csr = staticmethod(opdispatch.sparse_csr_tensor)
    quantize = staticmethod(lambda x: opdispatch.quantize_per_tensor(x, 0.1, 0, "quint8"))
    nested = staticmethod(opdispatch.nested_tensor)
    zeros = staticmethod(Tensor._efficientzerotensor)
    padded = staticmethod(lambda x: x.to_padded_tensor(0.0))
    is_tensor = staticmethod(lambda value: isinstance(value, Tensor))


class Theirs:
    tensor = staticmethod(torch.tensor)
    mode = staticmethod(torch.inference_mode)
    coo = staticmethod(torch.sparse_coo_tensor)
    csr = staticmethod(torch.sparse_csr_tensor)
    quantize = staticmethod(lambda x: torch.quantize_per_tensor(x.float(), 0.1, 0, torch.quint8))
    nested = staticmethod(torch.nested.nested_tensor)
    zeros = staticmethod(torch._efficientzerotensor)
    padded = staticmethod(lambda x: torch.nested.to_padded_tensor(x, 0.0))
    is_tensor = staticmethod(lambda value: isinstance(value, torch.Tensor))


class Given:
    """Arguments of the cases, for one side."""

    def __init__(self, side):
        self.dense = side.tensor([1.0, 2.0])
        self.matrix = side.tensor([[1.0, 0.0]])
        self.sparse = self.matrix.to_sparse()
        self.twice = side.coo([[0, 0]], [1.0, 2.0])
        self.rows = self.matrix.to_sparse_csr()
        self.quantized = side.quantize(self.dense)
        self.nested = side.nested([side.tensor([1.0]), side.tensor([1.0, 2.0])])
        self.zeros = side.zeros((2,))
        self.conjugate = side.tensor([1j]).conj()
        self.negative = self.conjugate.imag if side is Theirs else xp.imag(self.conjugate)


CASES = {
    "tensor": lambda side, given: side.tensor([1.0]),
    "coo": lambda side, given: side.coo([[0]], [1.0]),
    "csr": lambda side, given: side.csr([0, 1], [0], [1.0]),
    "quantize": lambda side, given: side.quantize(given.dense),
    "nested": lambda side, given: side.nested([given.dense, given.dense]),
    "zeros": lambda side, given: side.zeros((3,)),
    "to another device": lambda side, given: given.dense.to("meta"),
    "to the same device": lambda side, given: given.dense.to("cpu"),
    "cpu": lambda side, given: given.dense.cpu(),
    "to_dense": lambda side, given: given.sparse.to_dense(),
    "to_dense of dense": lambda side, given: given.dense.to_dense(),
    "to_sparse": lambda side, given: given.dense.to_sparse(),
    "to_sparse_csr": lambda side, given: given.matrix.to_sparse_csr(),
    "coo to csr": lambda side, given: given.sparse.to_sparse_csr(),
    "coalesce": lambda side, given: given.twice.coalesce(),
    "indices": lambda side, given: given.sparse.coalesce().indices(),
    "values": lambda side, given: given.sparse.coalesce().values(),
    "crow_indices": lambda side, given: given.rows.crow_indices(),
    "values of rows": lambda side, given: given.rows.values(),
    "dequantize": lambda side, given: given.quantized.dequantize(),
    "int_repr": lambda side, given: given.quantized.int_repr(),
    "values of nested": lambda side, given: given.nested.values(),
    "unbind": lambda side, given: given.nested.unbind(),
    "padded": lambda side, given: side.padded(given.nested),
    "sum with zeros": lambda side, given: given.zeros + 0,
    "resolve_conj": lambda side, given: given.conjugate.resolve_conj(),
    "resolve_conj of none": lambda side, given: given.dense.resolve_conj(),
    "resolve_neg": lambda side, given: given.negative.resolve_neg(),
    "conj": lambda side, given: given.conjugate.conj(),
    "detach": lambda side, given: given.dense.detach(),
    "view": lambda side, given: given.dense[:1],
    "deepcopy": lambda side, given: copy.deepcopy(given.dense),
}


def outcome(side, case, *, made_in_mode, called_in_mode):
    with side.mode(made_in_mode):
        given = Given(side)
    with side.mode(called_in_mode):
        result = CASES[case](side, given)
    return [each.is_inference() for each in ([result] if side.is_tensor(result) else result)]


@pytest.mark.parametrize("made_in_mode", [False, True])
@pytest.mark.parametrize("called_in_mode", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_same_tensors_are_inference_tensors(case, made_in_mode, called_in_mode):
    flags = {"made_in_mode": made_in_mode, "called_in_mode": called_in_mode}
    ours = outcome(Ours, case, **flags)
    if (case, made_in_mode, called_in_mode) == ("coalesce", True, False):
        with pytest.raises(RuntimeError, match="INTERNAL ASSERT"):
            outcome(Theirs, case, **flags)
        assert ours == [False]
    else:
        assert ours == outcome(Theirs, case, **flags)


def test_a_tensor_over_an_array_of_ones_own_is_one_of_pytorchs_alone():
    elements = np.ones(2)
    with opdispatch.inference_mode(), torch.inference_mode():
        assert torch.from_numpy(elements).is_inference()
        assert xp.asarray(elements).is_inference()
        assert not Tensor(elements).is_inference()

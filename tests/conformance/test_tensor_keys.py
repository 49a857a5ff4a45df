"""The keys of tensors on every device that PyTorch has a name for."""

import pytest

from opdispatch import BackendComponent
from opdispatch.tensors.tensor import key_set_of_backend

torch = pytest.importorskip("torch")

DEVICES = {
    "cpu": BackendComponent.CPU,
    "cuda": BackendComponent.CUDA,
    "hip": BackendComponent.HIP,
    "xla": BackendComponent.XLA,
    "mps": BackendComponent.MPS,
    "ipu": BackendComponent.IPU,
    "xpu": BackendComponent.XPU,
    "hpu": BackendComponent.HPU,
    "ve": BackendComponent.VE,
    "lazy": BackendComponent.Lazy,
    "mtia": BackendComponent.MTIA,
    "maia": BackendComponent.MAIA,
    "privateuseone": BackendComponent.PrivateUse1,
    "meta": BackendComponent.Meta,
}
OF_CLASSES = {"Python", "PythonTLSSnapshot"}


class Wrapper(torch.Tensor):
    """A tensor on a device that is not there."""

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("its keys alone are asked for")


def names(keys):
    return set(str(keys)[len("DispatchKeySet(") : -1].split(", "))


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_of_a_device_have_the_keys_of_pytorchs(device):
    theirs = torch.Tensor._make_wrapper_subclass(Wrapper, (2,), device=device)
    expected = names(torch._C._dispatch_keys(theirs)) - OF_CLASSES
    assert names(key_set_of_backend(DEVICES[device])) == expected

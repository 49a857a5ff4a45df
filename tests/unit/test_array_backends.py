"""Backends: an accelerator with memory of its own is added by one file, and is like any other."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable

import numpy as np
import pytest

from opdispatch import (
    BackendRegistration,
    DeviceTransfers,
    DispatchKey,
    DispatchKeySet,
    Library,
    MetaArray,
    Tensor,
    device_transfers,
    ops,
    parse_dispatch_key,
    register_backend,
)
from opdispatch import array_api as xp
from opdispatch.arrays import (
    PLAIN_KEY_BITS,
    CupyBackend,
    MetaBackend,
    NumpyBackend,
    backend_of_device,
    backends,
    collected_backends,
    device_of,
    find_backend,
    find_key_bits,
    on_host,
    preferred_backends,
    split_device,
)
from opdispatch.errors import (
    ArgumentError,
    DeviceError,
    DeviceLostError,
    DeviceMemoryError,
    NoKernelError,
)
from opdispatch_wire.errors import WireError
from opdispatch_wire.tensors import WireTensor, tensor_from_proto, tensor_to_proto
from opdispatch_wire.v1 import values_pb2
from tests.simulated_accelerator import Accelerator, AcceleratorArray, AcceleratorFullError

X = np.arange(6.0).reshape(2, 3)


def test_numpy_and_cupy_are_there_from_the_start():
    assert [type(backend) for backend in backends()] == [NumpyBackend, CupyBackend, MetaBackend]
    assert backend_of_device("cpu").device_count() == 1
    assert device_of(X) == device_of(np.float32(1)) == "cpu"
    with pytest.raises(TypeError, match="no backend has arrays of type list"):
        device_of([1])


@pytest.mark.parametrize(
    ("device", "kind", "number"),
    [("cpu", "cpu", None), ("cuda:1", "cuda", 1), ("privateuseone:12", "privateuseone", 12)],
)
def test_a_device_has_a_type_and_a_number(device: str, kind: str, number: int | None):
    assert split_device(device) == (kind, number)


@pytest.mark.parametrize("device", ["", "gpu", "cuda:", "cuda:01", "cuda:-1", "opengl", "c" * 999])
def test_split_device_rejects_malformed_names(device: str):
    with pytest.raises(DeviceError, match=r"no device .*; expected one such as"):
        split_device(device)


def test_a_device_without_a_backend_says_which_there_are():
    with pytest.raises(DeviceError, match="no backend for arrays on 'xpu:0'") as caught:
        backend_of_device("xpu:0")
    assert "cpu, cuda, meta" in caught.value.hint


def test_arrays_of_a_backend_have_its_key_while_registered():
    registration = register_backend(Accelerator())
    array = AcceleratorArray(X)
    assert list(DispatchKeySet(find_key_bits(array) or 0)) == [DispatchKey.PrivateUse1]
    assert device_of(array) == "privateuseone:0"
    registration.close()
    registration.close()
    assert find_key_bits(array) is None
    assert AcceleratorArray not in PLAIN_KEY_BITS
    registration.open()
    assert find_key_bits(array) is not None
    registration.close()


def test_a_retired_backend_knows_the_arrays_that_there_are():
    class Own(AcceleratorArray):
        pass

    class Retiring(Accelerator):
        def owns(self, cls: type) -> bool:
            return cls.__name__ == "Own"

    registration = register_backend(Retiring())
    backend, array = weakref.ref(registration.backend), Own(X)
    array.backend = registration.backend  # as an array's module knows it
    for _ in range(2):
        registration.retire()
        assert registration.backend not in backends()
        assert (find_backend(Own), device_of(array)) == (registration.backend, "privateuseone:0")
        np.testing.assert_array_equal(Tensor(array).cpu(), X)
        with pytest.raises(DeviceError, match="no backend for arrays on 'privateuseone'"):
            Tensor(X).to("privateuseone")
    registration.open()
    assert backend_of_device("privateuseone") is registration.backend
    registration.retire()
    registration.close()
    assert find_backend(Own) is None
    registration.retire()
    kind = weakref.ref(Own)
    del registration, array, Own, Retiring
    gc.collect()
    assert (backend(), kind()) == (None, None)


def test_a_type_may_be_seen_for_the_first_time_while_a_registration_is_closed():
    class Seen(np.ndarray):
        pass

    class Slow(Accelerator):
        def owns(self, cls: type) -> bool:
            find_key_bits(np.ones(1).view(type("New", (Seen,), {})))  # as a call in another thread
            return False

    registration = BackendRegistration(Slow())
    registration.close()
    assert find_key_bits(X) is not None


def test_a_tensor_of_it_has_pytorchs_keys_for_it(accelerator: Accelerator):
    tensor = Tensor(accelerator.from_host(X, "privateuseone:1"))
    assert (tensor.device, tensor.dtype, tensor.shape) == ("privateuseone:1", X.dtype, X.shape)
    for key in ("PrivateUse1", "AutogradPrivateUse1", "AutocastPrivateUse1", "ADInplaceOrView"):
        assert tensor.key_set.has(parse_dispatch_key(key))


def test_a_tensor_goes_to_a_device_and_back(accelerator: Accelerator):
    tensor = Tensor(X, requires_grad=True)
    assert tensor.to("cpu") is tensor
    there = tensor.to("privateuseone:1")
    assert (there.device, there.requires_grad) == ("privateuseone:1", True)
    assert there.key_set.has(parse_dispatch_key("PrivateUse1"))
    assert there.to("privateuseone") is there
    elsewhere = there.to("privateuseone:0")
    assert elsewhere.device == "privateuseone:0"
    back = elsewhere.to("cpu")
    assert not np.shares_memory(back.array, X)
    np.testing.assert_array_equal(back.array, X)
    for device in ("privateuseone:5", "xpu:0", "nowhere"):
        with pytest.raises(DeviceError, match=device):
            tensor.to(device)


def test_operators_have_kernels_for_it(accelerator: Accelerator):
    library = Library("accelerated", "DEF")
    library.define("add(Tensor x, Tensor y) -> Tensor")
    library.impl("add", lambda x, y: x + y, "PrivateUse1")
    op = ops.accelerated.add
    x = accelerator.from_host(X, "privateuseone:0")
    before = (accelerator.uploads, accelerator.downloads)
    result = op(x, x)
    assert isinstance(result, AcceleratorArray)
    assert (accelerator.uploads, accelerator.downloads) == before
    np.testing.assert_array_equal(accelerator.to_host(result), X + X)
    with pytest.raises(NoKernelError):
        op(X, X)
    library.close()


def test_a_number_on_a_device_is_read_from_there(accelerator: Accelerator):
    """Of an array that no library takes for a number, even zero would be true."""
    zero, one = (Tensor(accelerator.from_host(np.int64(n), "privateuseone:1")) for n in (0, 1))
    assert [bool(zero), bool(one)] == [False, True]
    assert [int(one), float(one), complex(one), one.item(), range(3)[one]] == [1] * 5
    assert f"{one:03d}" == "001"
    assert accelerator.downloads == 8
    several = Tensor(accelerator.from_host(X, "privateuseone:1"))
    with pytest.raises(ValueError, match="ambiguous"):
        bool(several)
    with pytest.raises(TypeError, match="integer"):
        range(3)[several]  # type: ignore[call-overload]
    accelerator.has_failed = True
    with pytest.raises(DeviceError, match="has fallen off"):
        bool(one)


def test_the_newest_backend_of_a_type_of_device_makes_its_arrays(accelerator: Accelerator):
    class Other(Accelerator):
        pass

    other = Other()
    registration = register_backend(other)
    assert backend_of_device("privateuseone:0") is other
    registration.close()
    assert backend_of_device("privateuseone:0") is accelerator


def test_collected_backend_is_registered_and_can_be_closed():
    with collected_backends() as collected:
        registration = register_backend(Accelerator())
    assert collected == [registration]
    assert isinstance(registration, BackendRegistration)
    assert registration.backend in backends()
    registration.close()


def test_collected_backend_makes_arrays_only_within_the_block(
    accelerator: Accelerator,
):
    own = Accelerator()
    with collected_backends() as collected:
        register_backend(own)
        assert backend_of_device("privateuseone") is own
    [registration] = collected
    assert backend_of_device("privateuseone") is accelerator
    assert own in backends()
    with preferred_backends([registration]):
        assert backend_of_device("privateuseone") is own
        assert backend_of_device("cpu") is not own
    registration.open()
    assert backend_of_device("privateuseone") is own
    with preferred_backends([BackendRegistration(accelerator)]):
        assert backend_of_device("privateuseone") is accelerator
    registration.close()


def test_backend_of_a_block_that_raises_is_unregistered():
    def fail() -> None:
        with collected_backends():
            register_backend(Accelerator())
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert len(backends()) == 3


def test_a_backend_of_no_device_is_refused():
    class Nowhere(Accelerator):
        device_type = "toaster"

    with pytest.raises(DeviceError, match="there is no device 'toaster'"):
        register_backend(Nowhere())
    assert len(backends()) == 3


def test_accelerator_array_round_trips_onto_its_device(accelerator: Accelerator):
    array = accelerator.from_host(X, "privateuseone:1")
    message = tensor_to_proto(array)
    assert (message.device, message.dispatch_keys) == ("privateuseone:1", 0)
    assert WireTensor(message).key_bits == find_key_bits(array)
    back = tensor_from_proto(message)
    assert isinstance(back, AcceleratorArray)
    assert device_of(back) == "privateuseone:1"
    np.testing.assert_array_equal(accelerator.to_host(back), X)
    tensor = tensor_from_proto(tensor_to_proto(Tensor(array)))
    assert isinstance(tensor, Tensor)
    assert tensor.key_set == Tensor(array).key_set


def test_decoding_error_of_a_device_names_place_and_reason(accelerator: Accelerator):
    message = tensor_to_proto(accelerator.from_host(X, "privateuseone:1"))
    accelerator.room = 40
    with pytest.raises(DeviceMemoryError, match=r"\$: 48 bytes do not fit into 40"):
        tensor_from_proto(message)
    accelerator.room = None
    message.device = "privateuseone:7"
    with pytest.raises(WireError, match=r"\$: there is no 'privateuseone:7'"):
        tensor_from_proto(message)
    array = accelerator.from_host(X, "privateuseone:1")
    accelerator.has_failed = True
    with pytest.raises(DeviceLostError, match=r"\$\.x: 'privateuseone:1' has fallen off"):
        tensor_to_proto(array, at="$.x")


def test_conversion_error_of_a_backend_becomes_device_error():
    class Broken(Accelerator):
        error: Exception = ValueError("no such queue")

        def from_host(self, array: object, device: str) -> AcceleratorArray:
            raise self.error

        def to_host(self, array: object) -> np.ndarray:
            raise self.error

    registration = register_backend(backend := Broken())
    device = "privateuseone:1"
    says = "the backend for arrays on 'privateuseone:1' raised ValueError: no such queue"
    there = AcceleratorArray(X, 1)
    try:
        for move in (lambda: Tensor(X).to(device), lambda: Tensor(there).cpu()):
            with pytest.raises(DeviceError, match=says):
                move()
        message = values_pb2.Tensor(dtype="float64", shape=[1], data=bytes(8), device=device)
        for send in (
            lambda: tensor_from_proto(message, at="$.args[0]"),
            lambda: tensor_to_proto(there, at="$.args[0]"),
        ):
            with pytest.raises(WireError, match=rf"\$\.args\[0\]: {says}"):
                send()
        backend.error = AcceleratorFullError("full")
        with pytest.raises(DeviceMemoryError, match="the accelerator is full"):
            Tensor(X).to(device)
    finally:
        registration.close()


@pytest.mark.parametrize(
    ("method", "use"),
    [
        ("to_host", float),
        ("to_host", Tensor.tolist),
        ("to_host", Tensor.item),
        ("to_host", lambda one: on_host(one.array)),
        ("from_host", lambda one: xp.zeros(3, device=one.device)),
    ],
)
def test_error_of_any_backend_method_becomes_device_error(
    accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch, method: str, use: Callable
):
    def fail(*_: object) -> None:
        raise ValueError("no such queue")

    one = Tensor(accelerator.from_host(np.float64(1), "privateuseone:1"))
    monkeypatch.setattr(accelerator, method, fail)
    says = "the backend for arrays on 'privateuseone:1' raised ValueError: no such queue"
    with pytest.raises(DeviceError, match=says):
        use(one)


def test_host_memory_error_quotes_numpy_and_python():
    host = backend_of_device("cpu")
    with pytest.raises(MemoryError) as caught:
        np.zeros((2**30, 2**25))
    error = host.explain(caught.value)
    assert isinstance(error, DeviceMemoryError)
    assert error.message.startswith("there is no room on 'cpu' (Unable to allocate 256. PiB for")
    assert error.facts == {"device": "cpu", "asked": str(2**58)}
    error = host.explain(MemoryError())
    assert error is not None
    assert (error.message, error.facts) == ("there is no room on 'cpu'", {"device": "cpu"})
    for other in (AcceleratorFullError("48 bytes"), DeviceMemoryError("full"), ValueError()):
        assert host.explain(other) is None


def test_an_array_without_elements_has_a_shape_and_a_dtype():
    meta = Tensor(X).to("meta")
    assert (meta.device, meta.shape, meta.dtype) == ("meta", (2, 3), X.dtype)
    assert meta.key_set.has(DispatchKey.Meta)
    array = meta.array
    assert isinstance(array, MetaArray)
    assert repr(array) == "MetaArray([2, 3], float64)"
    assert (array.ndim, array.size, array.nbytes) == (2, 6, 48)
    with pytest.raises(DeviceError, match="has no elements to copy"):
        meta.to("cpu")
    with pytest.raises(WireError, match=r"\$: .* has no elements to copy"):
        tensor_to_proto(array)
    with pytest.raises(ArgumentError, match=r"shape is \[2, -1\]"):
        MetaArray((2, -1), float)
    with pytest.raises(WireError, match="device is 'meta'"):
        tensor_from_proto(values_pb2.Tensor(dtype="uint8", device="meta", data=b"1"))


def test_a_call_with_one_goes_to_the_kernel_for_meta():
    library = Library("blueprint", "DEF")
    library.define("add(Tensor x, Tensor y) -> Tensor")
    library.impl("add", lambda x, y: x + y, "CPU")
    library.impl(
        "add",
        lambda x, y: MetaArray(
            np.broadcast_shapes(x.shape, y.shape), np.result_type(x.dtype, y.dtype)
        ),
        "Meta",
    )
    result = ops.blueprint.add(MetaArray((2, 1), np.float32), np.ones(3, np.int8))
    assert isinstance(result, MetaArray)
    assert (result.shape, result.dtype) == ((2, 3), np.float32)
    library.close()


def test_transfers_to_and_from_a_device_are_counted(accelerator: Accelerator):
    here = "privateuseone:0"

    def counted() -> tuple[int, int]:
        each = device_transfers().get(here, DeviceTransfers())
        return each.to_device - before.to_device, each.from_device - before.from_device

    before = device_transfers().get(here, DeviceTransfers())
    x = accelerator.from_host(X, here)
    accelerator.assign(x, accelerator.copy(x))
    assert counted() == (48, 0)
    accelerator.to_host(x)
    accelerator.assign(x, X)
    assert counted() == (96, 48)


def test_waiting_for_its_work_is_waiting_for_its_stream(accelerator: Accelerator):
    accelerator.synchronize("privateuseone:1")
    waits = [accelerator.stream(f"privateuseone:{number}").waits for number in range(2)]
    assert waits == [0, 1]
    backend_of_device("cpu").synchronize("cpu")


def test_numpys_arrays_are_written_to_copied_and_known_as_their_own():
    numpy = NumpyBackend()
    target = np.zeros((2, 3))
    numpy.assign(target[:, ::-1], X)
    np.testing.assert_array_equal(target, X[:, ::-1])
    assert numpy.dtype_of(X) == np.dtype(float)
    fortran = np.asfortranarray(X)
    assert numpy.copy(fortran).flags.c_contiguous
    assert numpy.is_its_own(target)
    read_only = np.zeros(2)
    read_only.flags.writeable = False
    views = (target[0], fortran, read_only, np.ma.masked_array([1]), np.float32(1))
    assert not any(numpy.is_its_own(view) for view in views)


def test_a_backend_that_is_gone_leaves_nothing():
    backend = Accelerator()
    registration = register_backend(backend)
    assert find_key_bits(AcceleratorArray(X)) is not None
    gone = weakref.ref(backend)
    registration.close()
    del backend, registration
    gc.collect()
    assert gone() is None

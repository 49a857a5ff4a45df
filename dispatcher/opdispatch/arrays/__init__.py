"""Arrays as tensors: array backends, devices, layouts, and copies between them.

devices          names of devices
device_memory    handles of device memory for other processes
device_transfers counters of copies between host and devices
size_limits      limits of array sizes
memory_overlap   whether elements of one array share memory
backend          the interface of an array library
backends         registered backends
tensor_types     types that count as tensors, and their dispatch keys
numpy_backend    host memory
cupy_backend     the memory of NVIDIA GPUs
cupy_errors      errors of CuPy and CUDA
cupy_ipc         arrays of other processes on the same GPU
cupy_kernel_block  the current GPU and stream of kernels
pinned_copies    large copies between host and GPU
meta_backend     arrays without elements
fake_array       arrays without elements that have a device
common_device    the device that all tensors of a call must share
lazy_array       arrays whose elements are computed on first use
zero_array       zeros
math_bits        lazily conjugated and negated arrays
dlpack_dtypes    DLPack exchange of host arrays with dtypes that NumPy's DLPack lacks
dlpack_import    arrays of other libraries, imported by DLPack
layout           the interface of a layout: tensors that consist of several dense arrays
sparse, sparse_coo, sparse_csr,
quantized, nested                       the layouts
level_array      tensors of function transforms
kernel_block     the current devices and streams of kernels
layouts          lookup of an array's layout, and functions for arrays of all layouts
"""

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import (
    PLAIN_KEY_BITS,
    BackendRegistration,
    backend_of_device,
    backends,
    collected_backends,
    device_errors,
    explain_device_error,
    find_backend,
    find_lost_device,
    preferred_backends,
    register_backend,
    use_device,
)
from opdispatch.arrays.common_device import common_device
from opdispatch.arrays.cupy_backend import CupyBackend
from opdispatch.arrays.device_memory import DeviceMemory
from opdispatch.arrays.device_transfers import (
    DeviceTransfers,
    count_transfer,
    device_transfers,
)
from opdispatch.arrays.devices import COMPONENTS, canonical_device, split_device
from opdispatch.arrays.dlpack_dtypes import give_by_dlpack, view_by_dlpack
from opdispatch.arrays.dlpack_import import adopt, is_foreign
from opdispatch.arrays.fake_array import FAKE_BIT, FakeArray
from opdispatch.arrays.layout import Facts, Layout
from opdispatch.arrays.layouts import (
    LAYOUTS,
    checked_array,
    copy_of,
    device_of,
    find_layout,
    on_device,
    on_host,
)
from opdispatch.arrays.meta_backend import MetaArray, MetaBackend
from opdispatch.arrays.nested import NestedArray
from opdispatch.arrays.numpy_backend import NumpyBackend
from opdispatch.arrays.quantized import QuantizedArray
from opdispatch.arrays.tensor_types import (
    CPU_BITS,
    CUDA_BITS,
    convert_tensor,
    describe_type,
    find_key_bits,
    key_bits_of,
    register_tensor_type,
    way_to_tensor,
)

register_backend(MetaBackend())
register_backend(CupyBackend())
register_backend(NumpyBackend())

__all__ = [
    "COMPONENTS",
    "CPU_BITS",
    "CUDA_BITS",
    "FAKE_BIT",
    "LAYOUTS",
    "PLAIN_KEY_BITS",
    "ArrayBackend",
    "BackendRegistration",
    "CupyBackend",
    "DeviceMemory",
    "DeviceTransfers",
    "Facts",
    "FakeArray",
    "Layout",
    "MetaArray",
    "MetaBackend",
    "NestedArray",
    "NumpyBackend",
    "QuantizedArray",
    "adopt",
    "backend_of_device",
    "backends",
    "canonical_device",
    "checked_array",
    "collected_backends",
    "common_device",
    "convert_tensor",
    "copy_of",
    "count_transfer",
    "describe_type",
    "device_errors",
    "device_of",
    "device_transfers",
    "explain_device_error",
    "find_backend",
    "find_key_bits",
    "find_layout",
    "find_lost_device",
    "give_by_dlpack",
    "is_foreign",
    "key_bits_of",
    "on_device",
    "on_host",
    "preferred_backends",
    "register_backend",
    "register_tensor_type",
    "split_device",
    "use_device",
    "view_by_dlpack",
    "way_to_tensor",
]

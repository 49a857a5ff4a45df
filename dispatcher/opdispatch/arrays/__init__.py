"""Arrays as tensors: which values are tensors, where they are, and how they get elsewhere.

devices          the names of devices
backend          what an array library has to answer
backends         those that are registered
tensor_types     what counts as a tensor, and which dispatch keys it has
numpy_backend    host memory
cupy_backend     the memory of NVIDIA GPUs
meta_backend     no memory: arrays without elements
foreign          arrays of other libraries that arrive from outside, by DLPack
"""

import numpy as np

from opdispatch.arrays.backend import ArrayBackend
from opdispatch.arrays.backends import (
    PLAIN_KEY_BITS,
    BackendRegistration,
    backend_of_device,
    backends,
    collected_backends,
    device_of,
    find_backend,
    register_backend,
)
from opdispatch.arrays.cupy_backend import CupyBackend
from opdispatch.arrays.devices import COMPONENTS, split_device
from opdispatch.arrays.foreign import adopt, is_foreign
from opdispatch.arrays.meta_backend import MetaArray, MetaBackend
from opdispatch.arrays.numpy_backend import NumpyBackend
from opdispatch.arrays.tensor_types import (
    CPU_BITS,
    CUDA_BITS,
    convert_tensor,
    describe_type,
    find_key_bits,
    key_bits_of,
    register_tensor_type,
)

register_backend(MetaBackend())
register_backend(CupyBackend())
register_backend(NumpyBackend())
PLAIN_KEY_BITS[np.ndarray] = CPU_BITS

__all__ = [
    "COMPONENTS",
    "CPU_BITS",
    "CUDA_BITS",
    "PLAIN_KEY_BITS",
    "ArrayBackend",
    "BackendRegistration",
    "CupyBackend",
    "MetaArray",
    "MetaBackend",
    "NumpyBackend",
    "adopt",
    "backend_of_device",
    "backends",
    "collected_backends",
    "convert_tensor",
    "describe_type",
    "device_of",
    "find_backend",
    "find_key_bits",
    "is_foreign",
    "key_bits_of",
    "register_backend",
    "register_tensor_type",
    "split_device",
]

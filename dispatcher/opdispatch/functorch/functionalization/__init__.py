"""Functionalization: run a function without aliases and in-place writes.

Mirrors ``ATen/FunctionalTensorWrapper.h`` and ``ATen/FunctionalStorageImpl.h``. The kernels that
use it are in ``functionalities/functionalize_fallback.py``.

view_meta           the steps from a base to a view, and their inverses
functional_storage  the storage that a base and its views share, with its pending writes
functional_tensor   a tensor that holds a value and regenerates it when it is out of date
level               one call of a functionalized function
transform           ``functionalize(func)``
"""

from opdispatch.functorch.functionalization.functional_tensor import FunctionalTensor
from opdispatch.functorch.functionalization.level import Level, current_level
from opdispatch.functorch.functionalization.transform import functionalize
from opdispatch.functorch.functionalization.view_meta import IDENTITY, ViewMeta

__all__ = ["IDENTITY", "FunctionalTensor", "Level", "ViewMeta", "current_level", "functionalize"]

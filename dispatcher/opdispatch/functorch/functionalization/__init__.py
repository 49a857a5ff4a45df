"""Programs without aliases and writes: what a tensor is while a function is functionalized.

Mirrors ``ATen/FunctionalTensorWrapper.h`` and ``ATen/FunctionalStorageImpl.h``. The kernels that
use it are in ``functionalities/functionalize_fallback.py``.

view_meta           how a view is made of its base, and the base made anew of the view
functional_storage  the elements that a base and its views share, and what was written to them
functional_tensor   a tensor that holds a value, and says so when it is out of date
level               one call of a functionalized function
transform           ``functionalize(func)``
"""

from opdispatch.functorch.functionalization.functional_tensor import FunctionalTensor
from opdispatch.functorch.functionalization.level import Level, current_level
from opdispatch.functorch.functionalization.transform import functionalize
from opdispatch.functorch.functionalization.view_meta import IDENTITY, ViewMeta

__all__ = ["IDENTITY", "FunctionalTensor", "Level", "ViewMeta", "current_level", "functionalize"]

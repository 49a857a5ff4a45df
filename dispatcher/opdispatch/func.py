"""Function transforms, under the names of ``torch.func``: vmap, grad and so on.

from opdispatch import func

func.vmap(func.grad(loss), in_dims=(None, 0))(weights, samples)
"""

from __future__ import annotations

from opdispatch.functorch.functionalization import functionalize
from opdispatch.functorch.grad_transform import grad, grad_and_value, vjp
from opdispatch.functorch.jacobian import hessian, jacfwd, jacrev
from opdispatch.functorch.jvp import jvp
from opdispatch.functorch.linearize import linearize
from opdispatch.functorch.vmap import vmap

__all__ = [
    "functionalize",
    "grad",
    "grad_and_value",
    "hessian",
    "jacfwd",
    "jacrev",
    "jvp",
    "linearize",
    "vjp",
    "vmap",
]

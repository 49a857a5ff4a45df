"""Function transforms: ``vmap``, ``grad``, ``jvp`` and others, nested in any order.

dynamic_layer      the levels of nested transforms, and the path of a call through them
operator_rules     an operator's rules, looked up once for all calls
aliased_return     the written argument that a return aliases
batched_tensor     tensors with a hidden batch dimension
tensor_wrapper     tensors that one level records
batching_rule      rules that apply an operator to a batch
batched_writes     rejects writes of batched values to unbatched tensors
batch_loop         calls an operator for each sample
vmap_layer         the level of vmap
grad_layer         the level of grad
dual_tensor        tensors with tangents
forward_rule       rules that compute tangents of results
jvp_layer          the level of jvp
double_backward    forward mode of an operator that has only a backward formula
pytree             arguments and results: tensors in tuples, lists and dicts
vmap               vmap
grad_transform     grad, vjp
jvp                jvp
linearize          linearize
jacobian           jacrev, jacfwd, hessian
functionalization  programs without aliases and in-place writes

Mirrors ``torch/csrc/functorch``, ``ATen/functorch`` and ``torch/_functorch`` of PyTorch. The
kernels of the keys are in ``functionalities/functorch.py`` and ``batched_fallback.py``.
"""

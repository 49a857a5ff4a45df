"""Function transforms: ``vmap``, ``grad`` and their kin, nested in any order.

dynamic_layer      the levels of nested transforms, and how a call goes down through them
operator_rules     what levels find once for all calls of an operator
aliased_return     which argument a return is that was written to
batched_tensor     tensors with a hidden dimension
tensor_wrapper     tensors that one level records
batching_rule      what an operator does with a batch
batched_writes     which writes of a batch are refused
batch_loop         an operator called for each sample
vmap_layer         the level of vmap
grad_layer         the level of grad
dual_tensor        tensors with tangents
forward_rule       how tangents of results follow from those of arguments
jvp_layer          the level of jvp
double_backward    forward mode of an operator that has a backward formula alone
pytree             arguments and results: tensors in tuples, lists and dicts
vmap               vmap
grad_transform     grad, vjp
jvp                jvp
linearize          linearize
jacobian           jacrev, jacfwd, hessian
functionalization  programs without aliases and writes

Mirrors ``torch/csrc/functorch``, ``ATen/functorch`` and ``torch/_functorch`` of PyTorch. What the
keys do is in ``functionalities/functorch.py`` and ``functionalities/batched_fallback.py``.
"""

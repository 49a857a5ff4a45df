"""The operators of a language model as a kernel library: the namespace ``lm``.

Load it with ``opdispatch load lm``, or import it for use inside one process. Names, arguments and
results are those of ``torch.nn.functional`` where PyTorch has the operator.

The kernels for ``CPU`` and ``CUDA`` have one source, written to the array API standard; those for
``Meta`` are the checks of the arguments, which say what shape and dtype the result has. Elements
are float64, float32, float16 or bfloat16, one dtype a call; the two short ones are calculated in
float32. What has no elements gives a result without elements, and runs no kernel.
"""

from lm import attention, positions, rows, weights

__all__ = ["attention", "positions", "rows", "weights"]

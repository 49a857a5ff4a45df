"""A small convolutional network for handwritten digits, as a kernel library: ``digits::``.

    opdispatch load digits.py

``conv2d`` is an operator with kernels of its own and a derivative that is registered. Everything
else is made of it and of the operators of the library ``array``, whose derivatives are known:
functions of tensors, which calculate wherever the tensors are. ``loss`` and ``sgd_`` are such
functions, registered as operators: called elsewhere, they are one call.
"""

import numpy as np
from array_api_compat import array_namespace

from opdispatch import ArgumentError, Library, MetaArray, Tensor, no_grad, ops
from opdispatch import array_api as xp

# Nothing here is shared between calls.
max_concurrency = 4

lib = Library("digits", "DEF")

# -- convolution -----------------------------------------------------------------------------------

CONV2D = "conv2d(Tensor x, Tensor weight, int[2] padding=0) -> Tensor"


def shape_of_conv2d(x, weight, padding):
    """Return the shape of the result. Raises ArgumentError for arguments that do not fit."""
    fits = len(x.shape) == len(weight.shape) == 4 and x.shape[1] == weight.shape[1]
    if not fits or x.dtype != weight.dtype:
        raise ArgumentError(
            "conv2d is of x (images, channels, height, width) and weight (results, channels, "
            f"height, width) of one dtype, and this is of x {list(x.shape)} of {x.dtype} and "
            f"weight {list(weight.shape)} of {weight.dtype}"
        )
    kernel = weight.shape[2:]
    extents = [n + 2 * p - k + 1 for n, p, k in zip(x.shape[2:], padding, kernel, strict=True)]
    if min(extents) < 1 or any(not 0 <= p < k for p, k in zip(padding, kernel, strict=True)):
        raise ArgumentError(
            f"a kernel of {list(kernel)} has no place in {list(x.shape[2:])} with padding "
            f"{list(padding)}, which is from 0 to one less than the kernel"
        )
    return x.shape[0], weight.shape[0], *extents


def on_arrays(function):
    """Make a kernel for tensors and plain arrays of a function for plain arrays."""

    def kernel(x, weight, padding):
        is_tensor = isinstance(x, Tensor) or isinstance(weight, Tensor)
        x = x.array if isinstance(x, Tensor) else x
        weight = weight.array if isinstance(weight, Tensor) else weight
        result = function(x, weight, padding, shape_of_conv2d(x, weight, padding))
        return Tensor(result) if is_tensor else result

    return kernel


@on_arrays
def conv2d(x, weight, padding, shape):
    """Convolve by a matrix product of the weight and the patches of ``x``.

    In memory the images are last, and the channels before them, there and in the result: so what
    is copied and calculated at a time is long.
    """
    xp = array_namespace(x)
    (down, across), (images, results, height, width) = padding, shape
    x = inner = x.transpose(2, 3, 1, 0)
    if down or across:
        rows, columns, *others = inner.shape
        padded = (rows + 2 * down, columns + 2 * across, *others)
        x = xp.zeros(padded, dtype=x.dtype, device=x.device)
        x[down : down + rows, across : across + columns] = inner
    *_, rows, columns = weight.shape
    patches = [x[i : i + rows, j : j + columns] for i in range(height) for j in range(width)]
    patches = xp.concat(patches).reshape(height * width, -1, images)
    product = weight.transpose(0, 2, 3, 1).reshape(results, -1) @ patches
    return product.reshape(height, width, results, images).transpose(3, 2, 0, 1)


@on_arrays
def conv2d_without_elements(x, weight, padding, shape):
    return MetaArray(shape, x.dtype)


def exchange(x):
    """Return the first two dimensions exchanged."""
    return xp.permute_dims(x, (1, 0, 2, 3))


def conv2d_backward(ctx, grad):
    """Both gradients are convolutions themselves, so they have derivatives, too."""
    x, weight = ctx.saved_tensors
    of_x = of_weight = None
    if ctx.needs_input_grad[0]:
        padding = [k - 1 - p for k, p in zip(weight.shape[2:], ctx.padding, strict=True)]
        of_x = ops.digits.conv2d(grad, xp.flip(exchange(weight), axis=(2, 3)), padding)
    if ctx.needs_input_grad[1]:
        of_weight = exchange(ops.digits.conv2d(exchange(x), exchange(grad), ctx.padding))
    return of_x, of_weight, None


def setup_context(ctx, inputs, output):
    x, weight, ctx.padding = inputs
    ctx.save_for_backward(x, weight)


lib.define(CONV2D)
lib.impl("conv2d", conv2d, "CPU")
lib.impl("conv2d", conv2d, "CUDA")
lib.impl("conv2d", conv2d_without_elements, "Meta")
lib.register_autograd("conv2d", conv2d_backward, setup_context=setup_context)

# -- the network -----------------------------------------------------------------------------------

SHAPES = {
    "conv1.weight": (8, 1, 3, 3),
    "conv1.bias": (8,),
    "conv2.weight": (16, 8, 3, 3),
    "conv2.bias": (16,),
    "linear.weight": (10, 64),
    "linear.bias": (10,),
}
"""Names and shapes as those of the modules of PyTorch."""


def make_parameters(dtype=np.float64, seed=0):
    """Arrays: weights by He et al., and zeros."""
    rng = np.random.default_rng(seed)
    return {
        name: (
            rng.normal(scale=(2 / np.prod(shape[1:])) ** 0.5, size=shape).astype(dtype)
            if name.endswith("weight")
            else np.zeros(shape, dtype)
        )
        for name, shape in SHAPES.items()
    }


def relu(x):
    return xp.where(x > 0, x, 0.0)


def max_pool2d(x):
    """Return the largest of each two by two."""
    images, channels, height, width = x.shape
    pairs = xp.reshape(x, (images, channels, height // 2, 2, width // 2, 2))
    return xp.max(pairs, axis=(3, 5))


def compute_logits(parameters, images):
    """(images, 10), of images (images, 1, 8, 8)."""
    weight1, bias1, weight2, bias2, weight3, bias3 = parameters
    x = ops.digits.conv2d(images, weight1, [1, 1]) + xp.reshape(bias1, (-1, 1, 1))
    x = max_pool2d(relu(x))
    x = ops.digits.conv2d(x, weight2, [1, 1]) + xp.reshape(bias2, (-1, 1, 1))
    x = max_pool2d(relu(x))
    columns = xp.reshape(xp.permute_dims(x, (1, 2, 3, 0)), (-1, x.shape[0]))  # as in memory
    return xp.matrix_transpose(weight3 @ columns) + bias3


def cross_entropy(logits, labels):
    """Return the network's surprise at the labels: the mean over the images, in nats."""
    with no_grad():
        largest = xp.max(logits, axis=1, keepdims=True)
    shifted = logits - largest
    of_label = xp.take_along_axis(shifted, xp.expand_dims(labels, axis=1), axis=1)
    return xp.mean(xp.log(xp.sum(xp.exp(shifted), axis=1)) - xp.squeeze(of_label, axis=1))


def compute_loss(parameters, images, labels):
    return cross_entropy(compute_logits(parameters, images), labels)


def step_sgd(parameter, gradient, velocity, lr, momentum):
    """Write to the parameter and to its velocity, as ``torch.optim.SGD`` does."""
    with no_grad():
        velocity *= momentum
        velocity += gradient
        parameter -= velocity * lr


lib.define("loss(Tensor[] parameters, Tensor images, Tensor labels) -> Tensor")
lib.impl("loss", compute_loss)
lib.define(
    "sgd_(Tensor(a!) parameter, Tensor gradient, Tensor(b!) velocity, float lr, float momentum)"
    " -> ()"
)
lib.impl("sgd_", step_sgd)

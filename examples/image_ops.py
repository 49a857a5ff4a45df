"""Image filters as a kernel library: the operators of ``image::``, in plain NumPy.

Load it into a running daemon with ``opdispatch load image_ops.py``, or import it for use inside
one process. Pictures are arrays of shape (height, width) or (height, width, channels), either
uint8 from 0 to 255 or floating from 0 to 1; every filter gives float32 from 0 to 1.
"""

import numpy as np

from opdispatch import Library, ops

lib = Library("image", "DEF")


def as_float(x):
    x = np.asarray(x)
    return x.astype(np.float32) / 255 if x.dtype == np.uint8 else x.astype(np.float32)


lib.define("gray(Tensor x) -> Tensor")


def gray(x):
    """Return the brightness of a picture, as the eye weighs red, green and blue (ITU-R BT.601)."""
    x = as_float(x)
    return x if x.ndim == 2 else x[..., :3] @ np.array([0.299, 0.587, 0.114], np.float32)


lib.impl("gray", gray, "CPU")


lib.define("convolve(Tensor x, Tensor weight) -> Tensor")


def convolve(x, weight):
    """Filter a picture of one channel with a small matrix of weights; edges are repeated."""
    x, weight = as_float(x), np.asarray(weight, np.float32)
    rows, columns = weight.shape
    padded = np.pad(x, [(rows // 2, rows // 2), (columns // 2, columns // 2)], mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape)
    return np.einsum("ijkl,kl->ij", windows, weight, dtype=np.float32, casting="unsafe")


lib.impl("convolve", convolve, "CPU")


lib.define("sobel(Tensor x, *, bool normalize=True) -> Tensor")

ACROSS = np.array([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], np.float32)


def sobel(x, *, normalize=True):
    """Return how strongly the brightness changes at each place: bright edges on black."""
    # Written with operators only, so it serves every backend that has them.
    brightness = ops.image.gray(x)
    across = ops.image.convolve(brightness, ACROSS)
    down = ops.image.convolve(brightness, ACROSS.T.copy())
    edges = np.hypot(across, down)
    return edges / max(float(edges.max()), 1e-6) if normalize else edges


lib.impl("sobel", sobel, "CompositeImplicitAutograd")


lib.define("blend(Tensor[] xs, float[]? weights=None) -> Tensor")


def blend(xs, weights=None):
    """Return the weighted mean of pictures of one shape; without weights, the plain mean."""
    return np.average([as_float(x) for x in xs], axis=0, weights=weights).astype(np.float32)


lib.impl("blend", blend, "CPU")


lib.define("histogram(Tensor x, int bins=16) -> (Tensor counts, Tensor edges)")


def histogram(x, bins=16):
    """Count the pixels by brightness: return the counts, and the bins+1 borders between them."""
    return np.histogram(gray(x), bins=bins, range=(0, 1))


lib.impl("histogram", histogram, "CPU")

"""A second version of ``image_ops.py``: ``image::sobel`` draws dark pencil lines on white paper.

Loaded under the same name, it replaces the first version while callers go on calling.
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


lib.define("sobel(Tensor x, *, bool normalize=True) -> Tensor")


def sobel(x, *, normalize=True):
    """Return how strongly the brightness changes at each place: dark lines on white."""
    down, across = np.gradient(ops.image.gray(x))
    edges = np.hypot(across, down)
    lines = np.sqrt(edges / max(float(edges.max()), 1e-6)) if normalize else edges
    return (1 - lines).astype(np.float32)


lib.impl("sobel", sobel, "CompositeImplicitAutograd")

"""A kernel library that shows each kind of argument and result on the command line."""

TEXT = '''\
"""A shop of operators."""

import os
import time

import numpy as np
from opdispatch import Library

lib = Library("shop", "DEF")
lib.define("edges(Tensor picture, *, bool normalize=True) -> Tensor")
lib.define("halves(Tensor x, int at=1) -> (Tensor first, Tensor second)")
lib.define("stack(Tensor[] xs) -> Tensor")
lib.define("show(str text, float number=1.0, ScalarType? dtype=None) -> str")
lib.define("add.Tensor(Tensor a, Tensor b) -> Tensor")
lib.define("add.Scalar(Scalar a, Scalar b) -> Scalar")
lib.define("increase_(Tensor(a!) x, Scalar by=1) -> Tensor(a!)")
lib.define("nothing() -> ()")
lib.define("fail(Tensor x) -> Tensor")
lib.define("wait(str folder) -> int")


def edges(picture, *, normalize=True):
    """The edges of a picture.

    Differences along its rows.
    """
    found = np.abs(np.diff(picture.astype(np.float64), axis=1))
    return found / max(found.max(), 1) if normalize else found


def increase_(x, by=1):
    x += by
    return x


def fail(x):
    raise ValueError("out of stock")


def wait(folder):
    open(os.path.join(folder, "entered"), "w").close()
    while not os.path.exists(os.path.join(folder, "leave")):
        time.sleep(0.005)
    return 1


lib.impl("edges", edges, "CPU")
lib.impl("halves", lambda x, at=1: (x[:at], x[at:]), "CPU")
lib.impl("stack", lambda xs: np.stack(xs), "CPU")
lib.impl("show", lambda t, n=1.0, d=None: f"{t!r} {n!r} {d}", "CompositeExplicitAutograd")
lib.impl("add.Tensor", lambda a, b: a + b, "CPU")
lib.impl("add.Scalar", lambda a, b: a + b, "CompositeExplicitAutograd")
lib.impl("increase_", increase_, "CPU")
lib.impl("nothing", lambda: None, "CompositeExplicitAutograd")
lib.impl("fail", fail, "CPU")
lib.impl("wait", wait, "CompositeExplicitAutograd")
'''

"""A kernel library whose calls a test can hold up, and see."""

TEXT = """\
import os
import time

import numpy as np
from opdispatch import Library

max_concurrency = 8

lib = Library("park", "DEF")
lib.define("double(Tensor x) -> Tensor")
lib.define("move(Tensor self, *, Tensor operator, int timeout=0) -> (Tensor, Tensor, int)")
lib.define("increase_(Tensor(a!) x) -> Tensor(a!)")
lib.define("repeat(Tensor x, int times) -> Tensor")
lib.define("wait(str folder) -> int")


def increase_(x):
    x += 1
    return x


def wait(folder):
    open(os.path.join(folder, "entered"), "w").close()
    while not os.path.exists(os.path.join(folder, "leave")):
        time.sleep(0.005)
    return 1


lib.impl("double", lambda x: x * 2, "CPU")
lib.impl("move", lambda self, *, operator, timeout=0: (self, operator, timeout), "CPU")
lib.impl("repeat", lambda x, times: np.tile(x, times), "CPU")
lib.impl("increase_", increase_, "CPU")
lib.impl("wait", wait, "CompositeExplicitAutograd")
"""

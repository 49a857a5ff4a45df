"""The texts of kernel libraries that several tests load."""

IMAGE = '''\
import numpy as np
from opdispatch import Library, ops

lib = Library("image", "DEF")
lib.define("invert(Tensor x) -> Tensor")
lib.define("scale(Tensor x, float by=2.0, *, bool negate=False) -> Tensor")
lib.define("pipeline(Tensor x) -> Tensor")
lib.define("stack(Tensor[] xs, Tensor? mask=None) -> (Tensor, int)")
lib.define("add_(Tensor(a!) self, Tensor other) -> Tensor(a!)")
lib.define("boom(Tensor x) -> Tensor")


def invert(x):
    """One minus the picture."""
    return 1 - x


def scale(x, by=2.0, *, negate=False):
    return -x * by if negate else x * by


def pipeline(x):
    return ops.image.invert(ops.image.scale(x, 3.0))


def stack(xs, mask=None):
    total = np.stack(xs) if mask is None else np.stack([x * mask for x in xs])
    return total, len(xs)


def add_(self, other):
    self += other
    return self


def boom(x):
    raise ValueError(f"no picture: {x.shape}")


lib.impl("invert", invert, "CPU")
lib.impl("scale", scale, "CPU")
lib.impl("pipeline", pipeline, "CompositeImplicitAutograd")
lib.impl("stack", stack, "CPU")
lib.impl("add_", add_, "CPU")
lib.impl("boom", boom, "CPU")
'''


def constant(value: int, *, namespace: str = "const", extra: str = "") -> str:
    """A library whose operator ``get(Tensor x) -> int`` returns ``value``."""
    return f"""\
from opdispatch import Library, ops

lib = Library({namespace!r}, "DEF")
lib.define("get(Tensor x) -> int")
lib.impl("get", lambda x: {value}, "CPU")
{extra}
"""


# Its kernel waits until a file appears, after it has made another one: a test can then do what
# it likes while the call is running.
GATE = """\
import os
import time

from opdispatch import Library

max_concurrency = 8

lib = Library("gate", "DEF")
lib.define("wait(Tensor x, str folder, int answer=1) -> int")


def wait(x, folder, answer=1):
    open(os.path.join(folder, f"entered-{answer}"), "w").close()
    while not os.path.exists(os.path.join(folder, "open")):
        time.sleep(0.005)
    return answer


lib.impl("wait", wait, "CPU")
"""

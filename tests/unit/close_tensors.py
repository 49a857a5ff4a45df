"""Whether a derivative is what was expected."""

import numpy as np

from opdispatch import no_grad


def close(got, want):
    assert tuple(got.shape) == np.shape(want)
    with no_grad():
        np.testing.assert_allclose(np.asarray(got), want, rtol=1e-7, atol=1e-9)

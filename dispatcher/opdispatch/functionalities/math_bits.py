"""Conjugate and negative views, of operators that have no rule for them.

PyTorch's fallbacks (``MathBitsFallback.h``) replace such views by what they stand for and go on
below the key. No operation makes such a view here, so there is nothing to replace: the call goes
on below the key with its arguments as they are.
"""

from __future__ import annotations

from opdispatch.dispatch_key import DispatchKey
from opdispatch.functionalities.below import redispatch_below

FALLBACKS = {
    DispatchKey.Conjugate: redispatch_below(DispatchKey.Conjugate),
    DispatchKey.Negative: redispatch_below(DispatchKey.Negative),
}

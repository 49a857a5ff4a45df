"""The public name of ``opdispatch.modes.deferred_init``."""

from opdispatch.modes.deferred_init import (
    deferred_init,
    materialize_module,
    materialize_tensor,
)

__all__ = ["deferred_init", "materialize_module", "materialize_tensor"]

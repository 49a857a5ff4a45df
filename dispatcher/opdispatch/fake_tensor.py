"""The public name of ``opdispatch.modes.fake_tensor``."""

from opdispatch.modes.fake_tensor import FakeTensorMode, is_fake

__all__ = ["FakeTensorMode", "is_fake"]

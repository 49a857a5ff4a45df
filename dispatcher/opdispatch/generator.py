"""The public name of ``opdispatch.tensors.generator``."""

from opdispatch.tensors.generator import Generator, default_generator, manual_seed, words_from

__all__ = ["Generator", "default_generator", "manual_seed", "words_from"]

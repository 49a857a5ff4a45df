"""NumPy and ml_dtypes, loaded no earlier than something of them is used.

A daemon passes tensors on as the bytes that they are and computes nothing, but most modules that
it consists of know NumPy's types. Once ``defer`` was called, ``import numpy`` gives a module that
loads itself when an attribute of it is first asked for; nothing else changes. So a daemon that
only passes calls on never has the 16 MB of both. An ``import numpy.random`` loads NumPy at once.

As ``importlib.util.LazyLoader``, which before Python 3.11.9 gives a thread half of a module that
another one is loading.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NAMES = ("numpy", "ml_dtypes")
# What the import statement asks for, and ``inspect`` of every module: no reason to load it.
_ALWAYS_THERE = ("__spec__", "__file__")
# Reentrant: what is loaded asks for attributes of itself, and of what it stands on.
_lock = threading.RLock()


class _DeferredModule(ModuleType):
    """A module that has not been run yet: a plain one afterwards."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _ALWAYS_THERE:
            with _lock:  # until all of it is there
                if type(self) is _DeferredModule:
                    _load(self)
        return ModuleType.__getattribute__(self, name)  # it may be no instance of ours by now


class _LoadingModule(_DeferredModule):
    """One that is being run, by the thread that holds the lock."""


def _load(module: ModuleType) -> None:
    """Run a deferred module, under the lock. After an error it may be tried again."""
    module.__class__ = _LoadingModule
    try:
        spec = module.__spec__
        assert spec is not None, "it was found"
        assert spec.loader is not None, "it is no namespace package"
        spec.loader.exec_module(module)
    except BaseException:
        module.__class__ = _DeferredModule
        raise
    module.__class__ = ModuleType


def defer() -> None:
    """Put off the loading of both in this process, unless they are loaded or not installed."""
    for name in _NAMES:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            module = module_from_spec(spec)
            module.__class__ = _DeferredModule
            sys.modules[name] = module


def load() -> None:
    """Load now what was put off."""
    for name in _NAMES:
        with _lock:
            module = sys.modules.get(name)
            if type(module) is _DeferredModule:
                _load(module)

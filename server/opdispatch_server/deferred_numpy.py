"""NumPy and ml_dtypes, loaded only when an attribute of theirs is first used.

A daemon forwards tensors as bytes and computes nothing, but most of its modules refer to NumPy's
types. After ``defer``, ``import numpy`` returns a module that loads itself when one of its
attributes is first accessed; nothing else changes. So a daemon that only forwards calls saves the
16 MB of both. An ``import numpy.random`` loads NumPy at once.

It is similar to ``importlib.util.LazyLoader``, which before Python 3.11.9 may show a thread a
module that another thread has only partly loaded.
"""

from __future__ import annotations

import sys
import threading
from importlib.util import find_spec, module_from_spec
from types import ModuleType
from typing import Any

_NAMES = ("numpy", "ml_dtypes")
# Attributes that the import statement reads, and ``inspect`` reads of every module, without loading
# it.
_ALWAYS_THERE = ("__spec__", "__file__")
# Reentrant: a module that is being loaded accesses its own attributes and those of its
# dependencies.
_lock = threading.RLock()


class _DeferredModule(ModuleType):
    """A module that has not been executed yet; afterwards it is a plain module."""

    def __getattribute__(self, name: str) -> Any:
        if name not in _ALWAYS_THERE:
            with _lock:  # until the module is complete
                if type(self) is _DeferredModule:
                    _load(self)
        return ModuleType.__getattribute__(self, name)  # it may be a plain module by now


class _LoadingModule(_DeferredModule):
    """A module that is being executed by the thread that holds the lock."""


def _load(module: ModuleType) -> None:
    """Execute a deferred module, under the lock. After an error it may be tried again."""
    module.__class__ = _LoadingModule
    try:
        spec = module.__spec__
        assert spec is not None, "it was found"
        assert spec.loader is not None, "it is not a namespace package"
        spec.loader.exec_module(module)
    except BaseException:
        module.__class__ = _DeferredModule
        raise
    module.__class__ = ModuleType


def defer() -> None:
    """Defer loading both in this process, unless they are loaded already or not installed."""
    for name in _NAMES:
        if name not in sys.modules and (spec := find_spec(name)) is not None:
            module = module_from_spec(spec)
            module.__class__ = _DeferredModule
            sys.modules[name] = module


def load() -> None:
    """Load the deferred modules now."""
    for name in _NAMES:
        with _lock:
            module = sys.modules.get(name)
            if type(module) is _DeferredModule:
                _load(module)

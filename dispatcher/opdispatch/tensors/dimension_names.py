"""Dimension names: a tensor with named dimensions has the key Named.

Mirrors ``torch/_namedtensor_internals.py``, which PyTorch 2.13 removed. A name is an identifier, or
None for an unnamed dimension. Only operators with a kernel for Named accept named tensors; all
others raise an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from opdispatch.autograd.variable import edge_of, meta_of
from opdispatch.errors import ArgumentError
from opdispatch.keys.dispatch_key import DispatchKey
from opdispatch.keys.dispatch_key_set import DispatchKeySet, bits_of_key

NAMED_BIT = bits_of_key(DispatchKey.Named)

Names = tuple[str | None, ...]


class TensorNames:
    """A base class of ``Tensor`` with the methods of named dimensions."""

    __slots__ = ()

    key_bits: int
    requires_grad_flag: Any
    array: Any
    _names: Names

    if TYPE_CHECKING:

        @property
        def ndim(self) -> int:
            """The number of dimensions."""

    @property
    def names(self) -> Names:
        """The name of each dimension; None for one without."""
        if self.key_bits & NAMED_BIT:
            # A tensor from another process has the key Named without the names.
            found: Names | None = getattr(self, "_names", None)
            if found is not None:
                return found
        return (None,) * self.ndim

    def has_names(self) -> bool:
        """Return whether any dimension has a name."""
        return any(name is not None for name in self.names)

    def rename(self, *names: Any, **renamed: str | None) -> Any:
        """Return a tensor over the same elements with other dimension names.

        ``rename("N", "C")`` names every dimension, ``...`` keeps the names of those it covers,
        ``rename(N="batch")`` renames the dimension N, and ``rename(None)`` removes all names. The
        result belongs to the same autograd graph. Raises ArgumentError for invalid or duplicate
        names and for a wrong number of names.
        """
        chosen = self._chosen(names, renamed)
        _check(chosen, self.ndim)
        bits = self.key_bits & ~NAMED_BIT
        if any(name is not None for name in chosen):
            bits |= NAMED_BIT
        make: Any = type(self)
        other = make(self.array, keys=DispatchKeySet(bits))
        edge_of(self)  # keep a leaf's gradient on this tensor even after the result is freed
        other._names = chosen
        other.autograd_meta = meta_of(self)
        other.requires_grad_flag = self.requires_grad_flag
        return other

    def _chosen(self, names: tuple[Any, ...], renamed: dict[str, str | None]) -> Names:
        mine = self.names
        if names and renamed:
            raise ArgumentError("rename takes either positional names or keywords, not both")
        if renamed:
            for name in renamed:
                if name not in mine:
                    raise ArgumentError(f"rename was given {name!r}, which is not among {mine}")
            return tuple(renamed.get(name, name) if name is not None else None for name in mine)
        if len(names) == 1 and names[0] is None:
            return (None,) * len(mine)
        if len(names) == 1 and isinstance(names[0], list | tuple):
            names = tuple(names[0])
        if names.count(...) > 1:
            raise ArgumentError("rename takes at most one ellipsis")
        if ... in names:
            place = names.index(...)
            kept = len(mine) - len(names) + 1
            return (*names[:place], *mine[place : place + max(kept, 0)], *names[place + 1 :])
        return names


def names_of_new(names: Sequence[str | None], ndim: int) -> Names | None:
    """Return the names of a new tensor's ``ndim`` dimensions; None if all are unnamed.

    Takes the names that ``rename`` takes, except ``...``, since no dimension has a name yet. Raises
    ArgumentError for invalid or duplicate names and for a wrong number of names.
    """
    if isinstance(names, str):
        raise ArgumentError(
            f"the names of a tensor are one for each dimension, and not the text {names!r}",
            hint=f"names=({names!r},)",
        )
    chosen = tuple(names)
    _check(chosen, ndim)
    return chosen if any(name is not None for name in chosen) else None


def _check(names: tuple[Any, ...], ndim: int) -> None:
    if len(names) != ndim:
        raise ArgumentError(f"{len(names)} names {names} were given to {ndim} dimensions")
    given = [name for name in names if name is not None]
    for name in given:
        if not isinstance(name, str) or not name.isidentifier():
            raise ArgumentError(f"a name of a dimension is an identifier or None, not {name!r}")
        if given.count(name) > 1:
            raise ArgumentError(f"the name {name!r} was given to more than one dimension: {names}")

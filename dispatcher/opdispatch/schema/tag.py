"""``Tag``: the properties of an operator beyond its schema.

Mirrors ``torch.Tag`` (``aten/src/ATen/native/tags.yaml``).
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from enum import StrEnum

from opdispatch.errors import SchemaError


class Tag(StrEnum):
    """A tag of PyTorch 2.13. Each member equals its name as a str."""

    core = "core"
    cudagraph_unsafe = "cudagraph_unsafe"
    data_dependent_output = "data_dependent_output"
    dynamic_output_shape = "dynamic_output_shape"
    flexible_layout = "flexible_layout"
    generated = "generated"
    inplace = "inplace"
    inplace_view = "inplace_view"
    maybe_aliasing_or_mutating = "maybe_aliasing_or_mutating"
    needs_contiguous_strides = "needs_contiguous_strides"
    needs_exact_strides = "needs_exact_strides"
    needs_fixed_stride_order = "needs_fixed_stride_order"
    nondeterministic_bitwise = "nondeterministic_bitwise"
    nondeterministic_seeded = "nondeterministic_seeded"
    out = "out"
    out_variant = "out_variant"
    pointwise = "pointwise"
    pt2_compliant_tag = "pt2_compliant_tag"
    reduction = "reduction"
    view_copy = "view_copy"


def tags_of(tags: str | Iterable[str] | None) -> tuple[Tag, ...]:
    """Return the distinct tags, in order. Raises SchemaError for an unknown name."""
    names = (tags,) if isinstance(tags, str) and tags else tuple(tags or ())
    for name in names:
        if name not in Tag.__members__:
            close = get_close_matches(str(name), Tag.__members__, n=1)
            raise SchemaError(
                f"there is no tag {name!r}",
                hint=f"did you mean {close[0]!r}?" if close else f"there are {', '.join(Tag)}",
                tag=str(name),
            )
    return tuple(dict.fromkeys(Tag(name) for name in names))

"""``FlopCounterMode``: counts the floating-point operations in a block, by operator.

Mirrors ``torch/utils/flop_counter.py``. The counts depend only on shapes, so the mode also works
with tensors on ``meta``.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self, TypeVar

from opdispatch.arrays import find_key_bits
from opdispatch.local_state.torch_dispatch_mode import TorchDispatchMode
from opdispatch.modes.operator_flops import ARRAY_FLOPS, FlopFormula

if TYPE_CHECKING:
    from opdispatch.dispatch.operator_handle import OperatorHandle

_F = TypeVar("_F", bound=FlopFormula)
_formulas: dict[str, FlopFormula] = dict(ARRAY_FLOPS)


def register_flop_formula(targets: str | Sequence[str]) -> Callable[[_F], _F]:
    """Register the decorated function as the FLOP formula of operators, for all their overloads.

    ``targets`` are operator names, such as ``"image::blur"``. The formula is called with the
    arguments of the call, each tensor replaced by its shape, and the keyword argument
    ``out_shape``. It returns the number of operations, and replaces an earlier formula.
    """

    def register(formula: _F) -> _F:
        for target in (targets,) if isinstance(targets, str) else targets:
            _formulas[target] = formula
        return formula

    return register


class FlopCounterMode(TorchDispatchMode):
    """Counts the floating-point operations of the operator calls in a block.

    For an operator without a formula, the operators that its kernel calls are counted; if there are
    none, it counts as 0. With ``display``, the table is printed at the end of the block.
    ``custom_mapping`` maps operator names to formulas for this counter only. Entering the mode
    again resets the counts. Use it for one block at a time.
    """

    def __init__(
        self,
        display: bool = True,
        custom_mapping: Mapping[str, FlopFormula] | None = None,
    ) -> None:
        super().__init__()
        self._display = display
        self._formulas = dict(custom_mapping or {})
        self._flops: Counter[str] = Counter()
        self._calls: Counter[str] = Counter()

    def get_total_flops(self) -> int:
        """Return the total number of floating-point operations."""
        return self._flops.total()

    def get_flop_counts(self) -> dict[str, int]:
        """Return the number of floating-point operations by operator name, in descending order.

        The overloads of an operator are counted together.
        """
        return dict(self._flops.most_common())

    def get_table(self) -> str:
        """Return a text table with the calls, FLOPs and share of the total of each operator."""
        total = self.get_total_flops()
        rows = [("operator", "calls", "flops", "%")]
        rows += [
            (name, str(self._calls[name]), f"{flops:,}", f"{100 * flops / max(total, 1):.1f}")
            for name, flops in self._flops.most_common()
        ]
        rows.append(("total", str(self._calls.total()), f"{total:,}", ""))
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join(
                [name.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])],
            ).rstrip()
            for name, *numbers in rows
        )

    def __torch_dispatch__(
        self,
        func: OperatorHandle,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func.name.name
        formula = self._formulas.get(name) or find_flop_formula(name)
        if formula is None:
            return self.call_kernel(func, types, args, kwargs)
        result = func(*args, **kwargs)
        named = shapes_of(kwargs)
        flops = formula(*map(shapes_of, args), out_shape=shapes_of(result), **named)
        self._flops[name] += flops
        self._calls[name] += 1
        return result

    def __enter__(self) -> Self:
        self._flops.clear()
        self._calls.clear()
        return super().__enter__()

    def __exit__(self, *exc: object) -> None:
        super().__exit__(*exc)
        if self._display:
            print(self.get_table())


def shapes_of(value: Any) -> Any:
    """Replace each tensor in ``value`` by its shape, as formulas expect."""
    if isinstance(value, list | tuple):
        shapes = [shapes_of(each) for each in value]
        return shapes if isinstance(value, list) else tuple(shapes)
    if isinstance(value, dict):
        return {name: shapes_of(each) for name, each in value.items()}
    if find_key_bits(value) is None:
        return value
    return tuple(getattr(value, "shape", ()))


def find_flop_formula(operator: str) -> FlopFormula | None:
    """Return the formula of the operator of that name, for all overloads; None if there is none."""
    return _formulas.get(operator)

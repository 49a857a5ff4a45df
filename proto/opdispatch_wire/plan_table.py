"""Plans of calls, looked up by the constant bytes of a request. No I/O."""

from __future__ import annotations

from typing import Final, Generic, Protocol, TypeVar

from opdispatch_wire.planned_requests import RequestLayout, constant_bytes_of

MOST_PLANS: Final = 4096
"""Most plans that a process keeps. Bounded, because clients choose which bytes are constant."""

MOST_ALIKE: Final = 16
"""Most plans with the same constant bytes, which differ in later arguments."""


class Plan(Protocol):
    """A plan of calls whose requests have the same layout."""

    @property
    def layout(self) -> RequestLayout:
        """The layout of the requests."""


P = TypeVar("P", bound=Plan)


class PlanTable(Generic[P]):
    """The plans of one epoch, at most MOST_PLANS.

    Any thread may use it without a lock: each change is one atomic dict or list operation. A full
    table is emptied; plans in use are made again by their next calls.
    """

    def __init__(self) -> None:
        self.plans: dict[bytes, list[P]] = {}
        """The plans by constant bytes. Public, so that hot paths look one up without a call."""
        self._count = 0

    def has(self, payload: bytes) -> bool:
        """Return whether the table has a plan for a request, whatever its leaves are."""
        plans = self.plans.get(constant_bytes_of(payload), ())
        return any(plan.layout.read(payload) is not None for plan in plans)

    def add(self, plan: P) -> None:
        """Add a plan, unless MOST_ALIKE with the same constant bytes exist already."""
        if self._count >= MOST_PLANS:
            self.clear()
        alike = self.plans.setdefault(plan.layout.constant, [])
        if len(alike) < MOST_ALIKE:
            alike.append(plan)
            self._count += 1

    def clear(self) -> None:
        """Drop all plans."""
        self.plans.clear()
        self._count = 0

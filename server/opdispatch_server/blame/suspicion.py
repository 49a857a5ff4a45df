"""The search for culprits: from deaths to culprits and suspects. No I/O, no clock.

Note [Blame]
    A death has a culprit: code that was running. Code that was not running is never blamed, and an
    import or an unload is not blamed for a death during which a kernel was running.

    Often the culprit is known: the thread that crashed, or the kernel that ran, or held the
    interpreter lock, for too long. Otherwise everything that was running is blamed for a share, in
    proportion to how often its runs end in a death: a subject with earlier deaths is the likelier
    culprit, and one with a thousand harmless runs hardly is. The subject whose share is at least
    ``SURE`` is the culprit; if there is none, all with a significant share are suspects.

    A library is kept *apart* once the shares of its subjects reach ``APART``: it runs where no
    other library can be hurt (``Separation``), one call at a time. That ends by itself, after a
    time that doubles each time; or once its calls have succeeded for long enough, unless it was
    ever proven to be the culprit. And as soon as another library that was running at those deaths,
    too, is proven to be the culprit, its shares in them are withdrawn.
"""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from opdispatch_server.blame.flight_record import KERNEL, Subject

SURE = 0.6
WORTH_MENTIONING = 0.15
APART = 0.5
# The prior rate of deaths of a subject that has never run: runs and deaths are counted from it.
_UNKNOWN_DEATHS = 0.05
# The weight of a death that may well have an external cause.
_OUTSIDE = 0.5
# The half-life of shares, in seconds.
HALF_LIFE = 120.0
FIRST_SPELL = 30.0
LONGEST_SPELL = 3600.0
# After so many successful calls, the library of a mere suspect is cleared.
CLEARED_AFTER = 20
OPEN_CASES = 32
"""How many deaths with an unknown culprit are remembered."""


class Cause(enum.Enum):
    """Cause of an interpreter's end."""

    CRASHED = "crashed"  # or exited: by itself
    KILLED = "killed"  # from outside, or by itself: that cannot be told apart
    OVERDUE = "overdue"  # stopped by the daemon for a kernel that took too long
    LOCKED = "locked"  # stopped by the daemon for a kernel that held the interpreter lock
    SILENT = "silent"  # no heartbeat came any more
    UNFIT = "unfit"  # it could no longer run kernels properly
    ORDERLY = "orderly"  # nothing was wrong with it


class Death(NamedTuple):
    """The evidence of one death."""

    cause: Cause
    running: Sequence[Subject] = ()
    """Everything that was running, repeated as often as it was."""
    named: Subject | None = None
    """The subject that is known to be the cause, if any."""
    recent: Sequence[Subject] = ()
    """Subjects whose runs had just ended; considered only if nothing was running."""


class Verdict(NamedTuple):
    """The judgement of one death."""

    cause: Cause
    culprit: Subject | None = None
    shares: Mapping[Subject, float] = {}
    """The significant shares, including that of the culprit."""
    calls: frozenset[int] | None = None
    """The calls that may be the cause, by ``call_key``; None: unknown."""

    def accuses(self, accused: Subject | str) -> bool:
        """Return whether ``accused``, or a kernel of that operator, is the culprit or a suspect."""
        if isinstance(accused, Subject):
            return accused in self.shares
        return any(each.operator == accused for each in self.shares)

    def accuses_call(self, operators: Iterable[str], call: int) -> bool:
        """Return whether a call of one of these operators may be the cause."""
        if self.calls is not None and call not in self.calls:
            return False
        return any(map(self.accuses, operators))

    @property
    def is_proven(self) -> bool:
        """Whether the cause cannot have been a process from outside."""
        return self.culprit is not None and self.cause is not Cause.KILLED

    def describe(self) -> str:
        """Return the culprit or the suspects, in words; "" if there are none."""
        if self.culprit is not None:
            doubt = "probably " if self.cause is Cause.KILLED else ""
            return f"{doubt}because of {self.culprit}"
        if not self.shares:
            return ""
        return f"while running {' and '.join(map(str, self.shares))}"


NO_CULPRIT = Verdict(Cause.ORDERLY)


@dataclass(slots=True)
class LibraryRecord:
    """The evidence against one library."""

    strikes: float = 0.0
    counted_at: float = 0.0
    spells: int = 0
    apart_until: float = 0.0
    is_proven: bool = False
    successes: int = 0
    # What it was last blamed for, in words.
    last: str = ""


@dataclass(slots=True)
class _Count:
    deaths: float = 0.0
    runs: int = 0


@dataclass
class Suspicion:
    """The evidence of every death so far. ``now`` is a time in seconds, of any monotonic clock."""

    _libraries: dict[str, LibraryRecord] = field(default_factory=dict)
    _counts: dict[Subject, _Count] = field(default_factory=dict)
    # The shares in deaths whose culprit is unknown.
    _open_cases: deque[Mapping[Subject, float]] = field(
        default_factory=lambda: deque(maxlen=OPEN_CASES)
    )

    def judge(self, death: Death, runs: Mapping[Subject, int], now: float) -> Verdict:
        """Judge one death; ``runs`` counts the successful runs of each subject so far."""
        shares = self._shares(death, runs)
        weight = _OUTSIDE if death.cause is Cause.KILLED else 1.0
        for subject, share in shares.items():
            self._counts.setdefault(subject, _Count()).deaths += weight * share
        culprit = max(shares, key=shares.__getitem__, default=None)
        if culprit is not None and shares[culprit] < SURE:
            culprit = None
        mentioned = {s: p for s, p in shares.items() if p >= WORTH_MENTIONING}
        verdict = Verdict(death.cause, culprit, mentioned if culprit is None else {culprit: 1.0})
        for subject, share in verdict.shares.items():
            self._strike(subject, weight * share, verdict, now)
        if culprit is None and mentioned:
            self._open_cases.append({s: weight * p for s, p in mentioned.items()})
        elif culprit is not None and verdict.is_proven:
            self._close_cases(culprit)
        return verdict

    def note_success(self, subject: Subject) -> None:
        """Record a successful run, which may clear its library."""
        record = self._libraries.get(subject.library)
        if record is None or record.is_proven:
            return
        record.successes += 1
        if record.successes >= CLEARED_AFTER:
            del self._libraries[subject.library]

    def is_apart(self, library: str, now: float) -> bool:
        """Return whether a library must run where it can hurt no other."""
        record = self._libraries.get(library)
        return record is not None and now < record.apart_until

    def apart(self, now: float) -> list[str]:
        """Return the libraries that are kept apart."""
        return [name for name in self._libraries if self.is_apart(name, now)]

    def next_end(self, now: float) -> float | None:
        """Return when the next library stops being kept apart; None if none does."""
        ends = [r.apart_until for r in self._libraries.values() if r.apart_until > now]
        return min(ends, default=None)

    def record_of(self, library: str) -> LibraryRecord | None:
        """Return the evidence against a library; read-only."""
        return self._libraries.get(library)

    def forget(self, library: str) -> None:
        """Forget a library: it is gone, or has new code."""
        self._libraries.pop(library, None)
        cases = [{s: p for s, p in c.items() if s.library != library} for c in self._open_cases]
        self._open_cases.clear()
        self._open_cases.extend(filter(None, cases))
        for subject in [s for s in self._counts if s.library == library]:
            del self._counts[subject]

    def _shares(self, death: Death, runs: Mapping[Subject, int]) -> dict[Subject, float]:
        if death.cause is Cause.ORDERLY:
            return {}
        if death.named is not None:
            return {death.named: 1.0}
        candidates = death.running
        if not candidates and death.cause is not Cause.KILLED:
            candidates = death.recent
        candidates = [each for each in candidates if each.kind == KERNEL] or candidates
        weights: dict[Subject, float] = {}
        for subject in candidates:
            count = self._counts.get(subject, _NO_COUNT)
            rate = (_UNKNOWN_DEATHS + count.deaths) / (1 + runs.get(subject, 0))
            weights[subject] = weights.get(subject, 0.0) + rate
        total = sum(weights.values())
        return {subject: weight / total for subject, weight in weights.items()}

    def _close_cases(self, culprit: Subject) -> None:
        """Withdraw the shares of all others in deaths that the culprit may have caused."""
        solved = [case for case in self._open_cases if culprit in case]
        for case in solved:
            self._open_cases.remove(case)
            for subject, share in case.items():
                record = self._libraries.get(subject.library)
                if subject == culprit or record is None:
                    continue
                self._counts[subject].deaths -= share
                record.strikes -= share
                if record.strikes < APART and not record.is_proven:
                    del self._libraries[subject.library]

    def _strike(self, subject: Subject, weight: float, verdict: Verdict, now: float) -> None:
        record = self._libraries.setdefault(subject.library, LibraryRecord())
        record.strikes *= 0.5 ** (max(now - record.counted_at, 0.0) / HALF_LIFE)
        record.counted_at = now
        record.strikes += weight
        record.successes = 0
        record.is_proven = record.is_proven or (subject == verdict.culprit and verdict.is_proven)
        record.last = str(subject)
        if record.strikes >= APART:
            spell = min(FIRST_SPELL * 2**record.spells, LONGEST_SPELL)
            if now >= record.apart_until:
                record.spells += 1
            record.apart_until = max(record.apart_until, now + spell)


_NO_COUNT = _Count()

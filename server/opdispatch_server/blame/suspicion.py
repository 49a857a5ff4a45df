"""The search for culprits: deaths in, culprits and suspects out. No I/O, no clock.

Note [Blame]
    A death has a culprit: something that was running. What was not running is never blamed, and
    an import or an unload is not blamed for a death in which a kernel was running.

    Often it is known which one it was: the thread that crashed, the kernel that has run, or has
    kept the interpreter lock, for too long. Otherwise each that was running is blamed for a
    share, in proportion to how often its runs end so: what has killed before is the likelier
    culprit, and what has run a thousand times without harm hardly is one. The one whose share is
    at least ``SURE`` is the culprit; if there is none, all that have a share worth mentioning
    are suspects.

    A library is *apart* once the shares that its subjects have gathered reach ``APART``: it runs
    where no other library is hurt (``Separation``), one call at a time. That ends by itself,
    after a time that doubles with every spell; or once its calls have gone well for long enough,
    unless it was ever proven to be the culprit. And as soon as another one is proven to be the
    culprit that was there each time, too, its shares in those deaths are taken back.
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
# What the rate of deaths of one is that has never run: runs and deaths are counted from there.
_UNKNOWN_DEATHS = 0.05
# A death that may well have come from outside counts for so much.
_OUTSIDE = 0.5
# Shares are forgotten with this half-life, in seconds.
HALF_LIFE = 120.0
FIRST_SPELL = 30.0
LONGEST_SPELL = 3600.0
# So many calls of a mere suspect that went well clear its library.
CLEARED_AFTER = 20
OPEN_CASES = 32
"""How many deaths are remembered whose culprit is not known."""


class Cause(enum.Enum):
    """Cause of an interpreter's end."""

    CRASHED = "crashed"  # or exited: its own doing
    KILLED = "killed"  # from outside, or by its own hand: that cannot be told
    OVERDUE = "overdue"  # the daemon has stopped it, over a kernel that took too long
    LOCKED = "locked"  # the same, over one that kept the interpreter lock
    SILENT = "silent"  # it was heard of no more
    UNFIT = "unfit"  # it could not run kernels properly any more
    ORDERLY = "orderly"  # nothing was wrong with it


class Death(NamedTuple):
    """The evidence of one end."""

    cause: Cause
    running: Sequence[Subject] = ()
    """Everything that was running; the same subject as often as it was."""
    named: Subject | None = None
    """The one of which it is known that it was it."""
    recent: Sequence[Subject] = ()
    """Subjects that had just ended; looked at only where nothing was running."""


class Verdict(NamedTuple):
    """The judgement of one end."""

    cause: Cause
    culprit: Subject | None = None
    shares: Mapping[Subject, float] = {}
    """Of everybody who is worth mentioning, the culprit among them."""
    calls: frozenset[int] | None = None
    """The calls that may have done it, as ``call_key`` says; None: that is not known."""

    def accuses(self, accused: Subject | str) -> bool:
        """Return whether it, or a kernel of that operator, is the culprit or a suspect."""
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
        """Whether the culprit cannot have been a process from outside."""
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
    """The charges against one library."""

    strikes: float = 0.0
    counted_at: float = 0.0
    spells: int = 0
    apart_until: float = 0.0
    is_proven: bool = False
    successes: int = 0
    # Words for people: the last thing that it was blamed for.
    last: str = ""


@dataclass(slots=True)
class _Count:
    deaths: float = 0.0
    runs: int = 0


@dataclass
class Suspicion:
    """The evidence of every death so far. ``now`` is a time in seconds, of any clock that grows."""

    _libraries: dict[str, LibraryRecord] = field(default_factory=dict)
    _counts: dict[Subject, _Count] = field(default_factory=dict)
    # The shares of deaths whose culprit is not known.
    _open_cases: deque[Mapping[Subject, float]] = field(
        default_factory=lambda: deque(maxlen=OPEN_CASES)
    )

    def judge(self, death: Death, runs: Mapping[Subject, int], now: float) -> Verdict:
        """Take in one death; ``runs`` are the runs of each subject that have ended well so far."""
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
        """Take in a run that went well, which may clear its library."""
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
        """Return the libraries that are apart."""
        return [name for name in self._libraries if self.is_apart(name, now)]

    def next_end(self, now: float) -> float | None:
        """Return when the next library stops being apart; None if none does."""
        ends = [r.apart_until for r in self._libraries.values() if r.apart_until > now]
        return min(ends, default=None)

    def record_of(self, library: str) -> LibraryRecord | None:
        """Return the charges against a library; to be read only."""
        return self._libraries.get(library)

    def forget(self, library: str) -> None:
        """Forget a library: it is gone, or has other code now."""
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
        """Take back the shares of all others in deaths that the culprit may have caused."""
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

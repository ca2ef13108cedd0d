"""What the calls of runs/overload.sh show: goodput, refusals, floors and waits of a phase, and the return to normal.

Knows no processes, sockets or clocks. A call is *good* if its first token came in time, its stream was whole and, if it
was fast, the client got it at its floor.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count

from headway.bench.load import quantile
from runs.torture.overload_callers import Made
from runs.torture.overload_cell import FLOOR_TPS, MAX_HOLD_S

IN_TIME_S = 8.0  # from when the call was wanted to its first token: one that is held for long and one retry fit in
WARM_UP_S = 6.0  # of each phase, in which the queue fills
ADDED_WAIT_S, ADDED_REFUSAL_S = 0.1, 0.02  # above these a call or a refusal is not as usual
WINDOW_S, STRAYS = 0.5, 1  # in a usual window of this length at most one call is not as usual


@dataclass(frozen=True)
class Phase:
    name: str
    times: float  # of the capacity, offered by all tenants together
    for_s: float = 32.0
    cv: float = 1.0  # of the gaps between arrivals
    retries: int = 0
    flood: float = 0.0  # times the capacity, by one tenant more
    slow: float = 0.0  # times the capacity, by slow readers
    sdk_per_s: float = 0.0  # of the calls, those that the OpenAI SDK makes
    after_s: float = 8.0  # at half the capacity, until all is normal

    @property
    def after(self) -> Phase:
        return Phase(f"{self.name}: after", 0.5 if self.after_s else 0.0, self.after_s)


@dataclass(frozen=True)
class Normal:
    """What is usual when half the capacity is asked for."""

    wait_s: dict[str, float]  # p99 by tier
    refusal_s: float  # p99, idle


@dataclass(frozen=True)
class Point:
    """One phase. Rates are per second, in the phase without its first seconds."""

    name: str
    offered: float  # attempts that were due
    good: float  # good calls that ended
    wait_s: tuple[float, float]  # p50 and p99 of the first token's wait of all that were served
    refusals: int
    refusal_s: tuple[float, float]  # p50 and p99
    untold: int  # refusals without a retry-after
    fast: int  # fast streams
    kept: int  # of these, those that the client got at their floor
    broken: int  # neither served nor refused
    served: float  # share of the calls that were good
    late_s: float  # p99 of how late the callers themselves were
    retried_s: float = 0.0  # after the last new call of the overload, more than the capacity was asked for
    normal_s: float = 0.0  # after that, until all was normal again


def is_good(made: Made) -> bool:
    in_time = made.how == "complete" and made.first_s - made.wanted_s <= IN_TIME_S
    return in_time and (made.what == "sdk" or is_kept(made) is not False)


def is_kept(made: Made) -> bool | None:
    """Whether the client got the stream at its floor. None if there is none to keep: as for a slow
    reader, and for the SDK's calls, which may be downgraded."""
    if made.tier != "fast" or made.what in ("slow", "sdk") or made.received < 2:
        return None
    return (made.received - 1) / max(1e-9, made.last_s - made.first_s) >= FLOOR_TPS


def refusal_s(made: Made) -> float:
    """How long the refusal took; of a call that was held to its deadline, from then."""
    held_s = MAX_HOLD_S[made.tier] if "hold_timeout" in made.words else 0.0
    return made.ended_s - made.due_s - held_s


def point(phase: Phase, made: Sequence[Made], from_s: float, retried_s: float = 0.0, normal_s: float = 0.0) -> Point:
    begin_s, end_s = from_s + min(WARM_UP_S, phase.for_s / 4), from_s + phase.for_s
    calls = [one for one in made if one.what in ("call", "sdk")]
    due = [one for one in made if begin_s <= one.due_s < end_s]
    counted = [one for one in calls if begin_s <= one.due_s < end_s]
    good = sum(is_good(one) and begin_s <= one.ended_s < end_s for one in made if one.what in ("call", "flood", "sdk"))
    waits = [one.first_s - one.wanted_s for one in counted if one.first_s]
    refused = [one for one in due if one.how == "refused"]
    # The SDK says when its last attempt failed, not when that was sent.
    times = [refusal_s(one) for one in refused if one.what != "sdk"]
    fast = [kept for one in made if (kept := is_kept(one)) is not None and one.how == "complete"]
    return Point(
        phase.name,
        offered=sum(one.what != "probe" for one in due) / (end_s - begin_s),
        good=good / (end_s - begin_s),
        wait_s=(_quantile(waits, 0.5), _quantile(waits, 0.99)),
        refusals=len(refused),
        refusal_s=(_quantile(times, 0.5), _quantile(times, 0.99)),
        untold=sum(one.how == "refused" and not one.retry_after.isdigit() for one in made),
        fast=len(fast),
        kept=sum(fast),
        broken=sum(one.how not in ("complete", "refused") for one in made),
        served=sum(map(is_good, counted)) / len(counted) if counted else float("nan"),
        late_s=_quantile([one.sent_s - one.due_s for one in due], 0.99),
        retried_s=retried_s,
        normal_s=normal_s,
    )


def normal(idle: Iterable[Made], half: Iterable[Made]) -> Normal:
    served = [one for one in half if one.first_s and one.what == "call"]
    waits = {tier: [one.first_s - one.wanted_s for one in served if one.tier == tier] for tier in MAX_HOLD_S}
    refusals = [refusal_s(one) for one in idle if one.how == "refused"]
    return Normal({tier: _quantile(found, 0.99) for tier, found in waits.items()}, _quantile(refusals, 0.99))


def retried_s(later: Iterable[Made], ended_s: float, capacity: float) -> float:
    """For how many whole seconds after its last new call an overload goes on, by the retries of its callers."""
    due = Counter(int(one.due_s - ended_s) for one in later if one.due_s >= ended_s and one.what != "probe")
    return next(second for second in count() if due[second] <= capacity)


def normal_after_s(after: Sequence[Made], ended_s: float, usual: Normal) -> float:
    """From the end of the overload to the end of the last window in which more than STRAYS calls were not as usual."""
    odd = sorted(one.due_s - ended_s for one in after if one.due_s >= ended_s and not is_usual(one, usual))
    windows = [later for early, later in zip(odd, odd[STRAYS:], strict=False) if later - early <= WINDOW_S]
    return max(windows, default=0.0)


def is_usual(made: Made, usual: Normal) -> bool:
    if made.what == "probe":
        return made.how != "refused" or refusal_s(made) <= usual.refusal_s + ADDED_REFUSAL_S
    return made.how == "complete" and made.first_s - made.due_s <= usual.wait_s[made.tier] + ADDED_WAIT_S


def _quantile(values: Sequence[float], q: float) -> float:
    return quantile(list(values), q) if values else float("nan")

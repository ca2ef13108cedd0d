"""Caps: how many streams each floor allows on each replica of a pool, and how long a token may take.

A cap comes from the replica's curve. It is the largest batch at which a stream gets the floor even if it is as slow as
the measured speed of others says it may be (feedback.py), and at least the margin above the floor otherwise. With a
target above the floor, a stream of usual slowness must get that too, or be alone. Without a curve the speed of a
replica is unknown and its caps are 0. A replica is shut out, with caps of 0, while a stream with a floor falls behind
there, and for RETRY_S if none is left aboard that would show that it is fast enough again. This module does not know
which streams are aboard. So a cap is for short contexts; what longer ones cost is checked where calls board
(replicas.py), against the longest time of a token.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Set
from itertools import islice
from typing import Final

from headway.core.curve import Curve, longest_s
from headway.core.doors import Doors
from headway.core.feedback import LEAST, MOST, Feedback, Spread
from headway.core.learnt import MAX_REPLICAS, LearntCaps, LearntReplica, within
from headway.core.replicas import ReplicaState
from headway.core.types import PoolPolicy, Replica

FEEDBACK_STEP: Final = 0.01  # caps are computed again when the measured slowness has changed by more than this share
RETRY_S: Final = 10.0
# If the streams of a pool differ more or less than before, the caps of all its replicas change: of more than AT_ONCE
# replicas a few in each step, because no step may take long, and once in ROUND_S, because with many streams the spread
# changes all the time. A replica whose streams end meanwhile does not wait for it: its caps are computed then.
AT_ONCE: Final = 64
IN_EACH_STEP: Final = 2
ROUND_S: Final = 2.0


class Caps:
    def __init__(self, targets: dict[float, float], policy: PoolPolicy, doors: Doors) -> None:
        self._targets = targets  # by floor; 0 if there is none
        self._old_floors: frozenset[float] = frozenset()  # not offered any more, and calls that are here have them
        self._margin = policy.margin
        self._kept_target = policy.kept_target
        self._spread = Spread(policy.kept_target)
        self._doors = doors
        # Replicas that are tried again later, with the time; the first comes first.
        self._retried: OrderedDict[str, tuple[float, ReplicaState]] = OrderedDict()
        self._caps_share = self._spread.share  # by which all caps were computed last
        self._outdated: deque[ReplicaState] = deque()  # replicas whose caps are still by the share before
        self._round_after = 0.0  # when those of a large pool may be outdated again
        self._most: dict[float, int] = {}  # cache by floor, cleared when the fleet changes

    def fleet_changed(self) -> None:
        """A replica was added, changed, drained or removed."""
        self._most.clear()

    def change(self, targets: dict[float, float], old_floors: Set[float], policy: PoolPolicy, now: float) -> None:
        """Other floors are offered, or by another policy. O(replicas)."""
        if policy.kept_target != self._kept_target:
            self._kept_target = policy.kept_target
            self._spread.aim(policy.kept_target)
        self._targets, self._old_floors, self._margin = targets, frozenset(old_floors), policy.margin
        self._most.clear()
        for state in self._doors.replicas.values():
            self.refresh(state)
            self._doors.place(state, now)

    def most_streams(self, floor_tps: float) -> int:
        """The largest cap of any replica that calls can wait for, from its curve without correction; for a floor of 0,
        the largest number of seats. O(replicas) after a change of the fleet, otherwise O(1)."""
        most = self._most.get(floor_tps)
        if most is None:
            replicas = [state.replica for state in self._doors.replicas.values() if not state.draining]
            caps = [
                self._cap(replica, floor_tps, 1.0 + self._margin, 1.0) if floor_tps else replica.seats
                for replica in replicas
            ]
            most = self._most[floor_tps] = max(caps, default=0)
        return most

    def usual_light_seats(self, replica: Replica) -> int:
        """From its curve without correction."""
        return max([self._cap(replica, floor_tps, 1.0 + self._margin, 1.0) for floor_tps in self.floors], default=0)

    def refresh(self, state: ReplicaState) -> None:
        """Compute the caps of the replica again. The caller must call Doors.place afterwards."""
        self._refresh_with(state, self._slowness(state))

    def _refresh_with(self, state: ReplicaState, slowness: float) -> None:
        state.caps_slowness = slowness
        is_shut_out = self.is_shut_out(state)
        floors = (*self._targets, *self._old_floors)
        state.caps = {
            floor_tps: 0 if is_shut_out else self._cap(state.replica, floor_tps, slowness, state.feedback.mean)
            for floor_tps in floors
        }
        state.longest_s = {floor_tps: longest_s(floor_tps, slowness - 1.0) for floor_tps in floors}
        state.light_seats = max([state.caps[floor_tps] for floor_tps in self.floors], default=0)

    @property
    def floors(self) -> Set[float]:
        """The floors that the next light replica is for: those that are offered, or if none is, those before."""
        return self._targets.keys() or self._old_floors

    def _slowness(self, state: ReplicaState) -> float:
        """How slow streams may be, compared with the curve, without missing their floor. A replica that seems faster
        than its curve gets no higher caps: seats that a lost relay's calls still had made its streams look fast."""
        return max(max(1.0, state.feedback.mean) * (1.0 + self._margin), state.feedback.slowness)

    def is_shut_out(self, state: ReplicaState) -> bool:
        return state.is_behind or state.replica.name in self._retried

    def _cap(self, replica: Replica, floor_tps: float, slowness: float, usual_slowness: float) -> int:
        if replica.curve is None:
            return 0
        cap = replica.curve.largest_batch(floor_tps, replica.seats, slowness - 1.0)
        if target_tps := self._targets.get(floor_tps):
            cap = min(cap, max(1, replica.curve.largest_batch(target_tps, replica.seats, usual_slowness - 1.0)))
        return cap

    # --- measured speed. The caller must call Doors.place after each of these ---

    def learn(self, state: ReplicaState, slowness: float, now: float, *, is_missed: bool) -> None:
        """Record the slowness of a stream with a floor that ended."""
        state.feedback.observe(slowness, is_missed=is_missed)
        if abs((1.0 + self._spread.share) / (1.0 + self._caps_share) - 1.0) > FEEDBACK_STEP:
            self._outdate(now)
        self._refresh_if_changed(state, now)

    def _outdate(self, now: float) -> None:
        is_small = len(self._doors.replicas) <= AT_ONCE
        if is_small or (not self._outdated and now >= self._round_after):
            self._round_after = now + ROUND_S
            self._caps_share = self._spread.share
            self._outdated = deque(self._doors.replicas.values())
            self.catch_up(now, AT_ONCE if is_small else 0)

    def catch_up(self, now: float, replicas: int = IN_EACH_STEP) -> None:
        """Compute the caps of some of the outdated replicas again."""
        for _ in range(min(replicas, len(self._outdated))):
            state = self._outdated.popleft()
            if self._doors.replicas.get(state.replica.name) is state:
                self._refresh_if_changed(state, now)
                self._doors.place(state, now)

    def _refresh_if_changed(self, state: ReplicaState, now: float) -> None:
        if abs(self._slowness(state) / state.caps_slowness - 1.0) <= FEEDBACK_STEP:
            return
        self.refresh(state)
        if not state.light_seats and not self.is_shut_out(state) and state.replica.curve is not None:
            # Without streams that have a floor nothing more would be learnt.
            self._retry_later(state, now)

    def falls_behind(self, state: ReplicaState) -> None:
        state.is_behind = True
        self.refresh(state)

    def recovered(self, state: ReplicaState, now: float) -> None:
        """No stream falls behind any more: those aboard are fast enough, or none is aboard."""
        state.is_behind = False
        if not state.express_seats:
            self._retry_later(state, now)
        self.refresh(state)

    def _retry_later(self, state: ReplicaState, now: float) -> None:
        self._retried[state.replica.name] = (now + RETRY_S, state)
        self._retried.move_to_end(state.replica.name)

    def let_back_in(self, now: float) -> None:
        while self._retried:
            until, state = next(iter(self._retried.values()))
            if until > now:
                return
            del self._retried[state.replica.name]
            if state.is_behind:
                self._retry_later(state, now)  # it is too slow now, whatever was measured before
                continue
            state.feedback = self.unmeasured()
            self.refresh(state)
            if not state.light_seats:
                self._spread.forget()
                self._retry_later(state, now)
            self._doors.place(state, now)

    def unmeasured(self) -> Feedback:
        return Feedback(self._spread)

    def forget(self, state: ReplicaState) -> None:
        """Reset what was measured: the replica was removed or has another curve."""
        state.feedback = self.unmeasured()
        state.is_behind = False
        self._retried.pop(state.replica.name, None)

    # --- what another core learns or has learnt ---

    def learnt(self, now: float) -> LearntCaps:
        return self._spread.learnt(self._caps_share, list(islice(self._learnt_replicas(now), MAX_REPLICAS)))

    def _learnt_replicas(self, now: float) -> Iterator[LearntReplica]:
        for name, state in self._doors.replicas.items():
            mean, curve = state.feedback.mean, state.replica.curve
            retried = self._retried.get(name)
            is_measured = mean != 1.0 or retried is not None or state.caps_slowness != self._slowness(state)
            if curve is not None and is_measured:
                retry_in_s = None if retried is None else retried[0] - now
                yield LearntReplica(name, _curve_s(curve), mean, state.caps_slowness, retry_in_s)

    def recall(self, learnt: LearntCaps, age_s: float, now: float) -> None:
        """Compute all caps again, by what another core has measured. Its replicas that have another curve here say
        nothing."""
        self._spread.recall(learnt)
        self._caps_share = within(learnt.caps_share, 0.0)
        self._outdated.clear()
        by_name = {one.name: one for one in learnt.replicas}
        for name, state in self._doors.replicas.items():
            one, curve = by_name.get(name), state.replica.curve
            if one is not None and curve is not None and _curve_s(curve) == one.curve_s:
                self._recall_replica(state, one, age_s, now)
            else:
                self.refresh(state)
            is_slower = state.caps_slowness > 1.0 + self._margin
            if not state.light_seats and is_slower and curve is not None and not self.is_shut_out(state):
                self._retry_later(state, now)
            self._doors.place(state, now)
        self._retried = OrderedDict(sorted(self._retried.items(), key=_until))

    def _recall_replica(self, state: ReplicaState, learnt: LearntReplica, age_s: float, now: float) -> None:
        state.feedback.mean = within(learnt.mean, LEAST, MOST)
        if learnt.retry_in_s is not None:
            self._retried[learnt.name] = (now + within(learnt.retry_in_s - age_s, 0.0, RETRY_S), state)
        slowness = self._slowness(state)
        caps_slowness = within(learnt.caps_slowness, LEAST)
        # Caps may be behind by one step when all were looked at, and by another one since.
        is_near = abs(slowness / caps_slowness - 1.0) <= (1.0 + FEEDBACK_STEP) ** 2 - 1.0
        self._refresh_with(state, caps_slowness if is_near else slowness)


def _curve_s(curve: Curve) -> float:
    """Tells curves apart."""
    return curve.seconds_per_token(1, 1)


def _until(retried: tuple[str, tuple[float, ReplicaState]]) -> float:
    return retried[1][0]

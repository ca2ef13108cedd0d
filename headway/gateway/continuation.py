"""Goes on with a stream at another engine, after its own was lost or core has taken it off.

What the next engine is told, and how its answer is read, is the dialect's business (wire.Seam). Core decides whether
and where the call boards again (core/machine.py). Here is what stands between them: the trip's state.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from headway.core.types import Delivering, Event, Stage
from headway.engines.base import Engine
from headway.errors import AnswerTooLarge, CannotContinue, EngineAnswered, EngineFailed, EngineLost
from headway.gateway.trip import Trip
from headway.wire import ContinuableMeter, Request, Seam


def ends_call(trip: Trip, failure: EngineFailed) -> bool:
    """Whether another engine would fail alike, because of what the client asks."""
    if isinstance(failure, EngineAnswered):
        return failure.status != 503
    is_asked_for = isinstance(failure, AnswerTooLarge) and not trip.request.is_bounded
    return is_asked_for or isinstance(failure, CannotContinue)


def stage_of(trip: Trip, failure: EngineFailed, *, has_begun: bool) -> Stage:
    """How far the call got at the engine that it has lost."""
    if trip.is_preempted:
        return "preempted"
    if not isinstance(failure, EngineLost):
        return "full"
    if has_begun:
        return "streaming"
    return "waiting" if failure.reached else "connect"


def seam_of(trip: Trip) -> Seam | None:
    """Where the trip's stream has stopped. None if it cannot go on at another engine."""
    meter = trip.meter
    if not trip.call.is_continuable or trip.is_fixed or not isinstance(meter, ContinuableMeter):
        return None
    return meter.seam(trip.request)


def may_go_on(trip: Trip, max_model_lens: Mapping[str, int]) -> bool:
    """Whether the trip, whose client got a part of its answer, can go on. Sets its seam."""
    seam = seam_of(trip)
    if seam is None or (not seam.is_over and seam.request(max_model_lens.get(trip.call.model)) is None):
        return False
    trip.seam = seam
    return True


def fix(trip: Trip, tell: Callable[[Event], None]) -> None:
    """Tell core, once, that the trip stays where it is: its answer begins or has begun, and cannot go on elsewhere."""
    if not trip.is_fixed:
        trip.is_fixed = True
        tell(Delivering(trip.call.id))


def finish_at_seam(trip: Trip, now: float) -> bool:
    """Whether the answer was complete but for its end, which the meter has now read."""
    if trip.seam is None or not trip.seam.is_over:
        return False
    trip.meter.feed(trip.seam.closing(), now)
    return True


async def next_request(trip: Trip, engine: Engine, max_model_lens: Mapping[str, int]) -> Request:
    """What the next engine is asked. The trip's meter reads its answer."""
    seam = trip.seam
    assert seam is not None
    request = seam.request(max_model_lens.get(trip.call.model))
    if request is None:
        raise EngineLost("the longest context of the model is not known any more", reached=False)
    text = await engine.decode(seam.decoded) if seam.decoded else ""
    trip.meter = seam.meter(trip.grant, text)
    trip.seam = None
    return request

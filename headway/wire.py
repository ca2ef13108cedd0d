"""What api/ hands to gateway/: a request on its way to an engine, the meter that reads its answer, the client.

Only shapes. api/ implements Meter and Client and never imports the gateway; gateway/ uses them and never learns which
dialect a call came in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

from headway.auto.gate import Asked, Said
from headway.core.rate_limit import RateLimit
from headway.core.types import MIN_TOKENS_FOR_PROMISE, Call, Tier
from headway.errors import RefusalReason
from headway.price import Bill, Price, bill


@dataclass(slots=True)
class Rung:
    """Which rung of an auto model a call is on, and what it took to get there."""

    auto: str  # the model that was asked for
    name: Literal["student", "full"]
    escalated: str = ""  # why the student's answer was not taken, or not asked for
    earlier_micro: int = 0  # what the student's answer cost that was not taken
    full_price: Price | None = None  # what the full model costs at the tier asked, for comparison
    earlier_all_full: int = 0  # as much was noted for that already
    earlier_s: float = 0.0  # spent on the student before


@dataclass(slots=True)
class Served:
    """How a call is served: what was asked, what was given and why, and what that promises."""

    asked: Tier
    tier: Tier
    reason: RefusalReason | None = None  # why it is not what was asked
    floor_tps: float = 0.0
    allowance: RateLimit | None = None  # what the caller had left of its limit for the tier asked
    price: Price | None = None  # of the tier served; None where nothing is billed
    seat_us: Callable[[], int] | None = None  # the call's seat-time until now, in microseconds; set when it boards
    seconds: Callable[[], float] | None = None  # since the call arrived
    billed: Bill | None = None  # as the answer has said it
    rung: Rung | None = None  # where an auto model was asked for
    reader_was_slow: bool = False  # the client read more slowly than the engine wrote: a measured speed is the client's

    def kept(self, output_tokens: int, speed_tps: float | None) -> bool | None:
        """Was the floor kept? None where that cannot be said: no floor, too short an answer for a speed to mean
        anything, a speed that could not be measured, or a client that held the stream up."""
        if not self.floor_tps or output_tokens < MIN_TOKENS_FOR_PROMISE or speed_tps is None:
            return None
        return True if speed_tps >= self.floor_tps else None if self.reader_was_slow else False

    def bill(self, prompt_tokens: int, output_tokens: int, speed_tps: float | None) -> Bill:
        """What the call costs so far."""
        if self.price is None:
            return Bill(0)
        is_missed = self.kept(output_tokens, speed_tps) is False
        return bill(self.price, prompt_tokens, output_tokens, is_missed=is_missed)

    def proof(self, prompt_tokens: int, output_tokens: int, speed_tps: float | None) -> dict[str, object]:
        """What every answer says at its end."""
        proof: dict[str, object] = {
            "tier_asked": self.asked,
            "tier_served": self.tier,
            "reason": self.reason,
            "tokens_per_second": round(speed_tps, 2) if speed_tps is not None else None,
            "floor_tokens_per_second": self.floor_tps or None,
            "kept": self.kept(output_tokens, speed_tps),
            "seat_seconds": self.seat_us() / 1e6 if self.seat_us is not None else None,
        }
        if self.seconds is not None:
            earlier_s = self.rung.earlier_s if self.rung is not None else 0.0
            proof["answer_seconds"] = round(earlier_s + self.seconds(), 4)
        if self.price is not None:
            self.billed = self.bill(prompt_tokens, output_tokens, speed_tps)
            earlier = self.rung.earlier_micro if self.rung is not None else 0
            billed = earlier + self.billed.amount - self.billed.refund
            proof |= {"billed_micro": billed, "refunded_micro": self.billed.refund}
        if self.rung is not None:
            proof |= {"rung": self.rung.name, "escalated": self.rung.escalated or None}
        if self.reader_was_slow:
            proof["reader_was_slow"] = True
        return proof


def stream_speed_tps(output_tokens: int, first_at: float | None, last_at: float | None) -> float | None:
    """The speed a floor is about: (output tokens - 1) / (last token - first token); None if there is none."""
    if first_at is None or last_at is None or last_at <= first_at or output_tokens < 2:
        return None
    return (output_tokens - 1) / (last_at - first_at)


class Meter(Protocol):
    """Reads one answer as it passes: what billing and proof need, and nothing else.

    `feed` returns the bytes the client shall get: the same ones, less what the gateway asked the engine for and the
    client did not. Tokens are counted by the engine's own usage figures; times are stamped by the caller as it reads
    the engine, so that a slow reader does not look like a slow engine.
    """

    first_at: float | None
    last_at: float | None
    complete: bool  # the dialect's success terminator has been seen
    served: Served  # set when the call boards

    def feed(self, data: bytes, now: float) -> bytes: ...

    def read_whole(self, body: bytes) -> bytes:
        """The answer came in one piece: take the usage out of it; returns it with the proof put in."""

    def speed_tps(self) -> float | None:
        """The answer's speed as `stream_speed_tps` has it, as far as it can be told."""

    def usage(self) -> tuple[int, int]:
        """(prompt tokens, output tokens) as far as the answer was read: exact at its end, a lower bound before."""


class FoldingMeter(Meter, Protocol):
    """One that can give an answer in one piece after it was fed as a stream."""

    def restart(self) -> None:
        """Forget what was fed: an engine begins the answer from the start."""

    def folded(self) -> bytes:
        """The whole, with the proof."""


class Rungs(Protocol):
    """A call to an auto model, as each rung shall get it."""

    asked: Asked | None  # None: nothing of it can be weighed, and the full model is asked

    def to_student(self, *, is_held: bool) -> Request:
        """Held back: in one piece, with what the gate wants to know of each token. Else as the client asked."""

    def to_full(self) -> Request: ...

    def to_audit(self) -> Request:
        """The full model's answer to the same, for nobody but the watch: at the owner's cost, on stand-by seats."""

    def read(self, whole: bytes) -> Said: ...

    def release(self, whole: bytes) -> bytes:
        """A held answer as the client wants it: in one piece or as events, with nothing it did not ask for."""


class Client(Protocol):
    """Where the answer goes: in one piece, or as a stream that is started, written and ended."""

    started: bool  # something has been sent: the call can no longer be given to another engine

    async def send_whole(self, content_type: bytes, body: bytes, served: Served) -> None: ...

    async def start_stream(self, content_type: bytes, served: Served) -> None: ...

    def write(self, data: bytes) -> None: ...

    def on_backpressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Call `pause` when unread bytes pile up towards the client and `resume` when they are gone."""

    async def end_stream(self) -> None: ...

    def abandon(self) -> None:
        """Break the connection: the client does not read."""


@dataclass(slots=True)
class Request:
    """A call together with what the engine shall be sent."""

    call: Call
    path: str
    body: bytes
    streaming: bool
    meter: Meter
    fold: FoldingMeter | None = None  # the meter, if the engine streams and the client gets the answer in one piece
    max_output_tokens: int | None = None  # of each choice, as the client limits it; 0: nothing is generated
    choices: int = 1
    rung: Rung | None = None
    rungs: Rungs | None = None  # where an auto model is asked for: which rung serves is not decided yet

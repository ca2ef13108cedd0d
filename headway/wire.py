"""The values that api/, gateway/, auto/ and ledger/ exchange, and the protocols that api/ implements for the gateway.

    Request   a call and the request body for its engine
    Grant     what one boarding gave the call: tier, floor, price, replica
    Usage     tokens as the engine counts them
    Receipt   the result of a call: made once, at its end

All four are frozen. Headers, proof, ledger entries and metrics are written only from them. api/ implements AnswerForm,
Meter and Client and never imports the gateway; gateway/ uses them and does not know the dialect of a call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, runtime_checkable

import msgspec

from headway.core.rate_limit import RateLimit
from headway.core.types import EXPRESS, Call, Tier
from headway.errors import RefusalReason, Refused
from headway.price import Bill, Price

Outcome = Literal["finished", "left", "failed", "error", "refused"]
Collect = Literal["never", "if_same", "always"]
TEMPLATE_TOKENS = 256  # what a chat template adds to a prompt, at most


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens as the engine counts them: exact at the end of an answer, a lower bound before that."""

    prompt_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens that the engine found in its prefix cache
    outputs: tuple[int, ...] = (0,)  # output tokens of each choice

    @property
    def output_tokens(self) -> int:
        return sum(self.outputs)


@dataclass(frozen=True, slots=True)
class Session:
    """What a client says a call belongs to (api/sessions.py). Only the bill depends on it."""

    id: str | None = None
    agent: str | None = None


NO_SESSION = Session()


@dataclass(frozen=True, slots=True)
class Trace:
    """The W3C trace context of a call: the values of two headers (api/trace_context.py). `parent` is empty if there is
    none."""

    parent: str = ""
    state: str = ""

    def headers(self) -> tuple[tuple[bytes, bytes], ...]:
        if not self.parent:
            return ()
        state = ((b"tracestate", self.state.encode()),) if self.state else ()
        return ((b"traceparent", self.parent.encode()), *state)


NO_TRACE = Trace()


@dataclass(frozen=True, slots=True)
class SentImages:
    """The images of a request. Its body has them as base64, which says nothing about their tokens."""

    pixels: tuple[int, ...] = ()  # of each
    chars: int = 0  # in the body
    max_tokens: int = 0  # of all; the owner says how many an image has at most


NO_IMAGES = SentImages()


@dataclass(frozen=True, slots=True)
class Rung:
    """The rung of an auto model that serves a call, and what happened before."""

    auto: str  # name of the auto model
    name: Literal["student", "full"]
    escalated: str = ""  # why the full model serves
    full_price: Price | None = None  # price of the full model at the tier asked, for comparison
    student: Receipt | None = None  # receipt of the student's answer, if there was one and it was not used
    earlier_s: float = 0.0  # time spent before this rung
    tier_asked: Tier = "standard"  # of the auto model; the student may not offer it


@dataclass(frozen=True, slots=True)
class Grant:
    """What one boarding gave a call."""

    tier_asked: Tier
    tier: Tier  # tier served
    replica: str = ""  # empty while the call has not boarded
    reason: RefusalReason | None = None  # why the tier served is not the tier asked
    floor_tps: float = 0.0
    price: Price | None = None  # price of the tier served; None if nothing is billed
    rate_limit: RateLimit | None = None  # what the caller had left of its limit for the tier asked
    rung: Rung | None = None  # set if an auto model was asked for
    served_by: str = ""  # the host of a server of somebody else; empty if it was served here


@dataclass(frozen=True, slots=True)
class Receipt:
    """The result of a call, summed over its boardings. `grant` is that of the last boarding."""

    grant: Grant
    outcome: Outcome
    usage: Usage
    speed_tps: float | None  # None if it could not be measured
    kept: bool | None  # whether the floor was kept; None if there is no floor or the speed is not conclusive
    bill: Bill
    seat_us: int | None  # None if core has not reported it yet
    answer_s: float  # from arrival to this receipt
    boardings: int
    reader_was_slow: bool = False  # the client read more slowly than the engine wrote, so the speed is not the engine's
    undelivered: Usage | None = None  # what the engine did for a client that got nothing of it; not billed
    moves: int = 0  # how often its stream went on at another engine
    repeated_tokens: int = 0  # that engines read again because it moved; not billed

    @property
    def paid_micro(self) -> int:
        return self.bill.amount - self.bill.refund


class NoSeat(Refused):
    """Core refused the call. `rate_limit` is what the tenant has left of its limit; None if there is no limit."""

    def __init__(self, reason: RefusalReason, retry_after_s: int, rate_limit: RateLimit | None) -> None:
        super().__init__(reason, retry_after_s)
        self.rate_limit = rate_limit


class SeatVoid(Exception):
    """The core that gave the call its seat may no longer decide: the call must not be sent to its engine."""


class AnswerOver(Exception):
    """The answer is complete. What the engine still sends is not wanted."""


GenerationTime = Callable[[Mapping[str, Any]], float | None]


class Meter(Protocol):
    """Reads the answer of one boarding as it passes, for what billing and proof need.

    The caller passes the time at which it read each piece from the engine, so that a slow client does not look like a
    slow engine.
    """

    first_at: float | None
    last_at: float | None
    has_usage: bool  # the engine has counted the tokens that came; otherwise each event counts as one token
    is_final: bool  # the engine's last usage has been read; no token follows
    is_complete: bool  # the dialect's success terminator has been read

    def feed(self, data: bytes, now: float) -> bytes:
        """Read a piece of a stream. Returns the bytes to send to the client now: the same bytes, without the usage that
        only the gateway asked for. The closing events are kept for `end`."""

    def read_whole(self, body: bytes, generation_s: GenerationTime) -> None:
        """Read an answer that came in one piece. `generation_s` extracts the engine's own timing from it."""

    def usage(self) -> Usage: ...

    def speed_tps(self) -> float | None:
        """(output tokens - 1) / (last token - first token) of the slowest choice. None if unknown."""

    def end(self, receipt: Receipt) -> bytes:
        """The last bytes for the client, including the proof: the closing events of a stream, or the whole answer."""


@runtime_checkable
class ContinuableMeter(Protocol):
    """A meter that keeps what another engine needs to go on with its stream."""

    repeated_tokens: int  # that engines read again, because the stream has moved

    @property
    def prompt_ids(self) -> bytes:
        """The prompt's token ids, as JSON numbers with commas between them; empty if they are not known."""

    def seam(self, request: Request) -> Seam | None:
        """Where the stream has stopped. None if it cannot go on at another engine."""


class Seam(Protocol):
    """Where a stream has stopped, and how it goes on at another engine. Changes nothing of the stream."""

    @property
    def tokens(self) -> int:
        """Output tokens that were delivered."""

    @property
    def is_over(self) -> bool:
        """Whether the engine had generated its last token, and was lost before it said so in its last usage."""

    @property
    def decoded(self) -> tuple[int, ...]:
        """Token ids whose text `meter` needs to know; empty if it needs none."""

    def request(self, max_model_len: int | None) -> Request | None:
        """The request for the next engine. None if it is not known how many tokens may follow."""

    def meter(self, grant: Grant, text: str) -> Meter:
        """Reads the next engine's answer as if the first one had gone on. `text` is that of `decoded`. Raises
        CannotContinue if it does not begin with the text that was delivered."""

    def closing(self) -> bytes:
        """What an engine says after its last token. For an answer that is over."""


class AnswerForm(Protocol):
    """The form in which a client wants its answer. Makes a new meter for each boarding."""

    def meter(self, grant: Grant) -> Meter: ...


class Client(Protocol):
    """Where the answer goes: in one piece, or as a stream that is started, written and ended."""

    @property
    def started(self) -> bool:
        """Whether something has been sent, so that the call can no longer be retried on another engine."""

    async def send_whole(self, content_type: bytes, body: bytes, receipt: Receipt) -> None: ...

    async def start_stream(self, content_type: bytes, grant: Grant) -> None: ...

    def write(self, data: bytes) -> None: ...

    def on_backpressure(self, pause: Callable[[], None], resume: Callable[[], None]) -> None:
        """Call `pause` when the client's write buffer is full and `resume` when it has drained."""

    async def end_stream(self) -> None: ...

    def abandon(self) -> None:
        """Abort the connection of a client that does not read."""


class StoredAnswers(Protocol):
    """Where api/ keeps answers that a client may continue, by tenant. All methods raise Refused if that is not possible
    at the moment. ledger/responses.py implements it."""

    max_bytes: int  # of one answer

    async def keep(self, tenant: str, plain: Mapping[str, bytes], /) -> None:
        """All of it, or nothing. By id: an answer, and parts of it that can be asked for alone."""

    async def read(self, tenant: str, answer_id: str, /) -> bytes | None:
        """None if this tenant has no such answer, or has it no more."""

    async def read_many(self, tenant: str, ids: Sequence[str], max_bytes: int, /) -> dict[str, bytes]:
        """What is there of these, by id. Raises TooLarge."""

    async def delete(self, tenant: str, ids: Sequence[str], /) -> bool:
        """Returns whether one of them was there."""


@dataclass(frozen=True, slots=True)
class ChatSoFar:
    """What an engine must be told of a chat answer that others have begun, to parse the rest as they would have."""

    chat: bytes  # the body of the request that they got
    prompt_ids: bytes  # JSON numbers with commas between them
    ids: tuple[bytes, ...]  # the same, of each event of the answer
    tool_call_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A call and the request for its engine. engines/ adds the fields that only one kind of engine knows."""

    call: Call
    path: str
    body: bytes  # a JSON object in the client's dialect, without the fields that only Headway reads
    form: AnswerForm
    streaming: bool  # the client gets the answer as a stream
    # Whether the engine may stream an answer that the client gets in one piece, so that its tokens are counted and
    # timed: `if_same` where the collected answer is the one that this engine gives in one piece.
    collect: Collect = "never"
    max_output_tokens: int | None = None  # the client's limit for each choice; 0 if nothing is generated
    runs_model: bool = True  # False if the engine only counts tokens, which costs nothing and is not cached
    is_bounded: bool = True  # its answer is no larger than api/limits.py allows; False if the client sets no limit
    template_names: tuple[str, ...] = ()  # of `chat_template_kwargs`; the owner says which a model takes
    images: SentImages = NO_IMAGES
    cache_salt: str = ""  # keeps tenants apart in the engine's prefix cache; empty if they share it
    rung: Rung | None = None
    session: Session = NO_SESSION
    trace: Trace = NO_TRACE  # as the client sent it; the engine gets that of the gateway's span, if it has one
    is_tier_open: bool = False  # no field of the request asks for a tier: a header, the model's name or the key may
    is_whole_timed: bool = True  # engines report the timing of an answer in one piece
    limit_field: str = "max_tokens"  # the dialect's field for `max_output_tokens`
    has_tools: bool = False
    is_parsable: bool = False  # if it is continuable, then also where the engine parses reasoning or tools
    prompt_start: int = 0  # where the prompt begins in the body
    so_far: ChatSoFar | None = None  # of a chat answer that goes on at another engine

    @property
    def max_prompt_tokens(self) -> int:
        """At most one token per byte, and what a chat template adds."""
        return len(self.body) - self.images.chars + self.images.max_tokens + TEMPLATE_TOKENS


def stream_speed_tps(
    output_tokens: int, first_at: float | None, last_at: float | None, first_tokens: int
) -> float | None:
    """The tokens that came after the first read, over the time from that read to the last token: a read that comes late
    has more than one. None if it cannot be computed."""
    tokens = output_tokens - max(1, first_tokens)
    if first_at is None or last_at is None or last_at <= first_at or tokens < 1:
        return None
    return tokens / (last_at - first_at)


def at_tier(request: Request, tier: Tier) -> Request:
    """The request at another tier. An answer with a floor must be timed: by a stream if the engine does not say."""
    if tier == request.call.tier:
        return request
    is_untimed = tier in EXPRESS and not request.streaming and not request.is_whole_timed
    collect: Collect = "always" if is_untimed else request.collect
    return replace(request, call=replace(request.call, tier=tier), collect=collect)


def for_model(request: Request, model: str) -> Request:
    """The request with the name by which the engines know its model."""
    asked = request.call.model
    if model == asked:
        return request
    start, body = b'{"model":' + msgspec.json.encode(asked), request.body
    if body.startswith(start):
        body = b'{"model":' + msgspec.json.encode(model) + body[len(start) :]
    else:
        body = msgspec.json.encode({**msgspec.json.decode(body, type=dict[str, msgspec.Raw]), "model": model})
    return replace(request, call=replace(request.call, model=model), body=body)


def with_fields(body: bytes, added: Mapping[str, object]) -> bytes:
    """Add fields to an encoded JSON object, without decoding it."""
    if not added:
        return body
    return body[:-1] + b"," + msgspec.json.encode(added)[1:]

"""A server of somebody else with OpenAI's API, for calls that find no seat here. It costs money, which has a budget.

Whatever it answers other than a success is a refusal by a server that is full: the call goes back and waits for a seat
here. So nobody sees this server's errors about keys, limits or money that are the owner's.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta, Struct

from headway.engines.base import Answer, EngineRequest
from headway.engines.openai_server import CountedAnswer, OpenAIServer
from headway.engines.vllm import HEALTH_TIMEOUT_S
from headway.errors import ConnectionFailed
from headway.price import Price
from headway.wire import NO_TRACE, Request, for_model, with_fields

log = logging.getLogger("headway.hosted")

Settle = Callable[[int], None]
TokenCount = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class SpendingBudget(Protocol):
    async def reserve(self, amount: int) -> Settle | None:
        """Take the most that a call may cost. Returns what to call once with what it did cost; None if less is left."""


@dataclass(frozen=True, slots=True)
class HostedTerms:
    model: str  # its name there
    key: str
    price: Price
    max_output_tokens: int  # of a call that sets no limit
    budget: SpendingBudget


class HostedServer(OpenAIServer):
    def __init__(self, name: str, url: str, terms: Callable[[], HostedTerms]) -> None:
        """`terms` are those of now: the owner may change them."""
        super().__init__(name, url, model="")  # it is asked for no token
        self._terms = terms

    def prepare(self, request: Request) -> EngineRequest:
        terms = self._terms()
        limit, added = request.max_output_tokens, {}
        if limit is None:
            limit = terms.max_output_tokens
            added[request.limit_field] = limit
        # Traces are the owner's: somebody else's server is told nothing of them.
        asked = super().prepare(replace(for_model(request, terms.model), trace=NO_TRACE))
        return replace(
            asked,
            headers=(*asked.headers, self._authorization()),
            body=with_fields(asked.body, added),
            max_cost=terms.price.amount(request.max_prompt_tokens, request.call.choices * limit),
        )

    async def send(self, request: EngineRequest, before_write: Callable[[], None]) -> Answer:
        terms = self._terms()
        if (settle := await terms.budget.reserve(request.max_cost)) is None:
            return RefusedAnswer()
        cost = HostedCost(terms.price, request, settle)
        with ExitStack() as unless_served:
            unless_served.callback(cost.ends_unserved)
            answer = await self._pool.request(b"POST", request.path, request.body, request.headers, before_write)
            if answer.status == 200:
                unless_served.pop_all()
                return HostedAnswer(answer, request, cost)
        answer.close()
        log.warning("%s answered a call with %d", self.name, answer.status)  # its body may quote the prompt
        return RefusedAnswer()

    async def is_healthy(self) -> bool:
        """Asks for the list of models, with the key: that costs nothing."""
        try:
            async with asyncio.timeout(HEALTH_TIMEOUT_S):
                status, _ = await self._pool.exchange(b"GET", "/v1/models", headers=(self._authorization(),))
        except (ConnectionFailed, TimeoutError):
            return False
        return status == 200

    async def max_model_len(self) -> int | None:
        return None

    async def produces_a_token(self) -> bool:
        """Not asked for one, which would cost money."""
        return await self.is_healthy()

    def _authorization(self) -> tuple[bytes, bytes]:
        return b"authorization", b"Bearer " + self._terms().key.encode()


class CachedTokens(Struct):
    cached_tokens: TokenCount | None = 0


class HostedUsage(Struct):
    prompt_tokens: TokenCount
    completion_tokens: TokenCount
    prompt_tokens_details: CachedTokens | None = None


class WholeAnswer(Struct):
    usage: HostedUsage


class HostedCost:
    """What a call costs at the server: as its usage says, else as much as was seen of it."""

    def __init__(self, price: Price, request: EngineRequest, settle: Settle) -> None:
        self._price, self._request, self._settle = price, request, settle
        self._is_over = False

    def ends_unserved(self) -> None:
        self._end(0)

    def ends(self, usage: HostedUsage | None, events: int) -> None:
        if usage is not None:
            details = usage.prompt_tokens_details or CachedTokens()
            cached = min(details.cached_tokens or 0, usage.prompt_tokens)
            self._end(self._price.amount(usage.prompt_tokens, usage.completion_tokens, cached))
        elif events:  # of a stream that was cut off
            self._end(self._price.amount(self._request.prompt_tokens, events))
        else:  # nothing is known
            self._end(self._request.max_cost)

    def _end(self, spent: int) -> None:
        if not self._is_over:
            self._is_over = True
            self._settle(spent)


class HostedAnswer(CountedAnswer):
    def __init__(self, answer: Answer, request: EngineRequest, cost: HostedCost) -> None:
        super().__init__(answer, request.prompt_tokens)
        self._cost = cost
        self._whole: HostedUsage | None = None

    async def read(self) -> bytes:
        body = await super().read()
        with suppress(msgspec.MsgspecError):
            self._whole = msgspec.json.decode(body, type=WholeAnswer).usage
        return body

    def close(self) -> None:
        super().close()
        usage = self._whole
        with suppress(msgspec.MsgspecError):
            usage = usage or msgspec.convert(self.stream.usage, HostedUsage)
        self._cost.ends(usage, self.stream.events)


class RefusedAnswer:
    """As of a server that is full."""

    status = 503
    content_type = b"application/json"

    async def read(self) -> bytes:
        return b"{}"

    async def pipe(self, sink: Callable[[bytes], None]) -> None: ...

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...

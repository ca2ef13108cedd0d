"""Fast mode with the official SDKs, unchanged, in every branch; the engines' own record is the witness."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from datetime import UTC, datetime
from math import inf
from typing import Any

import anthropic
import openai
import pytest
from anthropic import AsyncAnthropic

from headway import deciding
from headway.config.to_core import policy_of
from headway.engines.scripted import Faults, Script, ScriptedEngine, running
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
# 200 tok/s alone, 100 among 4, 40 among 8: a floor of 80 with its margin of a tenth allows 4 streams.
SCRIPT = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.005), (4, 0.010), (8, 0.025)))
CURVE = [[1, 200.0], [4, 100.0], [8, 40.0]]
FAST = {"name": "fast", "floor_tps": 80.0, "max_hold_s": 0.3}
ASK: Any = [{"role": "user", "content": "two words"}]
STANDARD = {"max_hold_s": 60.0}
# Tokens, where a speed is compared with the script's: a first token that a busy machine reads 90 ms late adds 5 %.
LONG = 400


def with_fast(engines: list[ScriptedEngine], floor_tps: float = 80.0) -> Any:
    return config_for(engines, express=[{**FAST, "floor_tps": floor_tps}], curve=CURVE, tier=STANDARD)


def with_express(engine: ScriptedEngine, *tiers: dict[str, Any], seats: int = 8) -> Any:
    return config_for([engine], express=list(tiers), curve=CURVE, seats=seats)


@pytest.fixture
def no_reserve(monkeypatch: pytest.MonkeyPatch) -> None:
    """No seats are kept ready for fast calls."""
    monkeypatch.setattr(deciding, "policy_of", lambda model: replace(policy_of(model), express_wait_s=inf))


async def fill(here: Running, calls: int, tokens: int = 400) -> list[asyncio.Task[Any]]:
    """Standard calls, all aboard or held (or done already) when this returns."""
    tasks = [
        asyncio.create_task(here.openai.completions.create(model=MODEL, prompt="hi", max_tokens=tokens))
        for _ in range(calls)
    ]
    async with asyncio.timeout(20):
        while sum(t.grant.tier == "standard" for t in here.gateway._trips.values()) < sum(not t.done() for t in tasks):
            await asyncio.sleep(0.002)
    return tasks


async def stop(tasks: list[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_whole_answer_has_its_proof_in_a_header_too() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine], floor_tps=20.0)) as here:
        chat = await here.openai.chat.completions.with_raw_response.create(
            model=MODEL, messages=ASK, max_tokens=30, service_tier="fast"
        )
        proof = json.loads(chat.headers["headway-proof"])
        assert proof == chat.parse().usage.headway  # type: ignore[union-attr]
        assert (proof["tier_served"], proof["kept"]) == ("fast", True)
        message = await here.anthropic.messages.with_raw_response.create(model=MODEL, messages=ASK, max_tokens=30)
        parsed = await message.parse()
        assert json.loads(message.headers["headway-proof"]) == parsed.usage.headway  # type: ignore[attr-defined]


async def test_fast_is_served_and_proved() -> None:
    # A floor that the engine alone keeps ten times over: the box may be busy with other tests.
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine], floor_tps=20.0)) as here:
        whole = await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=30, service_tier="fast")
        assert whole.service_tier == "fast"
        proof = whole.usage.headway  # type: ignore[union-attr]
        assert (proof["tier_asked"], proof["tier_served"], proof["kept"]) == ("fast", "fast", True)
        stream = await here.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=LONG, service_tier="priority", stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        assert stream.response.headers["headway-tier-served"] == "fast"
        assert stream.response.headers["headway-floor-tps"] == "20"
        chunks = [chunk async for chunk in stream]
        assert chunks[0].service_tier == chunks[-1].service_tier == "priority"
        proof = chunks[-1].usage.headway  # type: ignore[union-attr]
        assert proof["kept"] is True
        assert 20 < proof["tokens_per_second"] < 210
        assert LONG * 0.005 < proof["seat_seconds"] < 10  # alone, it pays for every second
        assert proof["answer_seconds"] >= proof["seat_seconds"] - 0.001
        page = here.gateway.metrics.page().decode()
        assert 'headway_seat_seconds_total{model="scripted",tier="fast"}' in page
        message = await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=30, speed="fast")
        assert message.usage.speed == "fast"


async def test_the_beta_header_alone_means_standard() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        said = await here.anthropic.messages.create(
            model=MODEL, messages=ASK, max_tokens=5, extra_headers={"anthropic-beta": "fast-mode-2026-02-01"}
        )
        assert said.usage.speed == "standard"


@pytest.mark.usefixtures("no_reserve")
async def test_fast_without_a_seat_is_refused_in_one_dialect_and_downgraded_in_the_other() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        busy = await fill(here, 6)
        with pytest.raises(anthropic.RateLimitError) as refused:
            await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=5, speed="fast")
        assert int(refused.value.response.headers["retry-after"]) >= 1
        assert "the tier `fast`; send the header `Headway-Fallback: standard`" in refused.value.message
        await stop(busy)
    # Another gateway: this one has learnt that fast calls come, and keeps seats for them.
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        busy = await fill(here, 6, tokens=60)
        soft = await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, service_tier="fast")
        assert soft.service_tier == "default"
        assert soft.usage.headway["reason"] == "hold_timeout"  # type: ignore[union-attr]
        await asyncio.gather(*busy)


@pytest.mark.usefixtures("no_reserve")
async def test_the_client_may_choose_otherwise() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        busy = await fill(here, 6, tokens=100)
        with pytest.raises(openai.RateLimitError):
            await here.openai.chat.completions.create(
                model=MODEL, messages=ASK, service_tier="fast", extra_headers={"Headway-Fallback": "none"}
            )
        soft = await here.anthropic.messages.create(
            model=MODEL, messages=ASK, max_tokens=5, speed="fast", extra_headers={"Headway-Fallback": "standard"}
        )
        assert soft.usage.speed == "standard"
        with pytest.raises(openai.BadRequestError, match="Headway-Fallback"):
            await here.openai.chat.completions.create(
                model=MODEL, messages=ASK, extra_headers={"Headway-Fallback": "maybe"}
            )
        await stop(busy)


async def test_the_sdk_honours_the_retry_after() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        busy = await fill(here, 6, tokens=60)  # done after about a second
        async with AsyncAnthropic(base_url=here.url, api_key="none", max_retries=3) as patient:
            message = await patient.messages.create(model=MODEL, messages=ASK, max_tokens=5, speed="fast")
        assert message.usage.speed == "fast"
        await asyncio.gather(*busy)


async def test_a_tier_that_is_not_offered_is_refused_by_name() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        with pytest.raises(openai.BadRequestError, match="not offered at `ultrafast`") as said:
            await here.openai.chat.completions.create(
                model=MODEL, messages=ASK, extra_body={"service_tier": "ultrafast"}
            )
        assert said.value.param == "service_tier"


async def test_models_are_listed_with_their_tiers_and_floors() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        [model] = [model async for model in here.openai.models.list()]
        tiers = {tier["name"]: tier["floor_tokens_per_second"] for tier in model.service_tiers}  # type: ignore[attr-defined]
        assert tiers == {"standard": None, "fast": 80.0}


async def test_no_fast_stream_shares_a_replica_above_its_limit() -> None:
    """Two engines under standard load, fast calls all the time: seen from the engines, one of them stays light."""
    async with running(SCRIPT) as a, running(SCRIPT) as b, running_gateway(with_fast([a, b])) as here:
        proofs = []

        async def fast(delay_s: float) -> None:
            await asyncio.sleep(delay_s)
            answer = await here.openai.chat.completions.create(
                model=MODEL, messages=ASK, max_tokens=30, service_tier="fast"
            )
            proofs.append(answer.usage.headway)  # type: ignore[union-attr]

        # A stream that lasts as long as the test: on a busy machine others might all end before the next one comes.
        lasting = await here.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=8_000, service_tier="fast", stream=True
        )
        busy = await fill(here, 30, tokens=60)
        await asyncio.gather(*[fast(0.2 * number) for number in range(12)])
        await asyncio.gather(*busy)
        await lasting.close()
        light, heavy = sorted(engine.record()["highest_running"] for engine in (a, b))
        assert light <= 4
        assert heavy == 8
        # How many depends on the machine: on a busy one streams fall behind the floor, and new promises are refused.
        assert "fast" in {proof["tier_served"] for proof in proofs}


async def test_a_missed_floor_is_told() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        engine.faults = Faults(slow_factor=4.0)
        answer = await here.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=30, service_tier="fast"
        )
        assert answer.usage.headway["kept"] is False  # type: ignore[union-attr]
        page = here.gateway.metrics.page().decode()
        assert 'headway_promises_total{model="scripted",outcome="missed",tier="fast"} 1.0' in page


async def test_a_fast_message_in_one_piece_is_proved_too() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine], floor_tps=20.0)) as here:
        whole = await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=LONG, speed="fast")
        standard = await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=LONG)
        assert whole.content == standard.content
        assert whole.stop_reason == standard.stop_reason == "max_tokens"
        assert whole.usage.output_tokens == standard.usage.output_tokens == LONG
        assert whole.usage.input_tokens == standard.usage.input_tokens
        proof = whole.usage.headway  # type: ignore[attr-defined]
        assert proof["kept"] is True
        assert 20 < proof["tokens_per_second"] < 210


@pytest.mark.usefixtures("no_reserve")
async def test_a_flex_call_makes_way_for_a_fast_one_and_is_served_later() -> None:
    tiers = [{**FAST, "max_hold_s": 10.0}, {"name": "flex", "max_hold_s": 60.0}]
    async with running(SCRIPT) as engine, running_gateway(with_express(engine, *tiers, seats=4)) as here:

        def call(tier: str, tokens: int) -> asyncio.Task[Any]:
            ask = {"model": MODEL, "messages": ASK, "max_tokens": tokens, "extra_body": {"service_tier": tier}}
            return asyncio.create_task(here.openai.chat.completions.create(**ask))

        flex = [call("flex", 300) for _ in range(4)]
        async with asyncio.timeout(20):
            while engine.record()["running"] < 4:
                await asyncio.sleep(0.005)
        state = here.gateway.machine.pools[MODEL].replica_state(engine.url)
        assert state is not None
        most = state.caps[80.0]  # now: later core has learnt from these streams
        fast = await call("fast", 20)
        assert fast.service_tier == "fast"
        assert not any(task.done() for task in flex)
        answers = await asyncio.gather(*flex)
        assert [answer.usage.completion_tokens for answer in answers] == [300] * 4
        assert {answer.service_tier for answer in answers} == {"flex"}
        record = engine.record()
        assert record["aborted"] == 4 + 1 - most  # as many as stood in its way
        assert record["highest_running"] == 4


async def test_the_seat_of_a_client_that_left_is_given_on_when_the_engine_has_let_go() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine], seats=4)) as here:
        for _ in range(5):
            leaving = await fill(here, 4)
            staying = await fill(here, 4, tokens=10)
            await stop(leaving)
            await asyncio.gather(*staying)
        await here.until_empty()
        assert engine.record()["highest_running"] == 4


async def test_the_limit_of_fast_tokens_is_shown_and_kept() -> None:
    limited = {**FAST, "floor_tps": 20.0, "output_tokens_per_minute": 60, "input_tokens_per_minute": 1000}
    async with running(SCRIPT) as engine, running_gateway(with_express(engine, limited)) as here:
        ask: Any = {"model": MODEL, "messages": ASK, "max_tokens": 80, "speed": "fast"}
        first = await here.anthropic.messages.with_raw_response.create(**ask)
        assert first.headers["anthropic-fast-output-tokens-limit"] == "60"
        assert first.headers["anthropic-fast-output-tokens-remaining"] == "60"
        assert first.headers["anthropic-fast-input-tokens-remaining"] == "1000"
        with pytest.raises(anthropic.RateLimitError) as refused:
            await here.anthropic.messages.create(**ask)
        said = refused.value.response.headers
        assert int(said["retry-after"]) >= 20  # 20 tokens overdrawn, one a second
        assert said["anthropic-fast-output-tokens-remaining"] == "0"
        assert datetime.fromisoformat(said["anthropic-fast-output-tokens-reset"]) > datetime.now(UTC)
        soft = await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, service_tier="fast")
        assert soft.service_tier == "default"
        assert soft.usage.headway["reason"] == "over_limit"  # type: ignore[union-attr]
        # Standard calls are not counted, and are not told of limits they do not have.
        standard = await here.anthropic.messages.with_raw_response.create(**{**ask, "speed": "standard"})
        assert not [name for name in standard.headers if name.startswith("anthropic-fast")]


async def test_limits_are_shown_in_the_headers_of_the_openai_dialect() -> None:
    limited = {"output_tokens_per_minute": 60, "input_tokens_per_minute": 1000}
    async with running(SCRIPT) as engine, running_gateway(config_for([engine], tier=limited)) as here:
        chat = here.openai.chat.completions.with_raw_response
        first = await chat.create(model=MODEL, messages=ASK, max_tokens=80)
        shown = {name: value for name, value in first.headers.items() if name.startswith("x-ratelimit")}
        assert shown == {
            "x-ratelimit-limit-tokens": "1000",
            "x-ratelimit-remaining-tokens": "1000",
            "x-ratelimit-reset-tokens": "0ms",
        }
        with pytest.raises(openai.RateLimitError) as refused:
            await chat.create(model=MODEL, messages=ASK, max_tokens=5)
        said = refused.value.response.headers
        assert (said["x-ratelimit-limit-tokens"], said["x-ratelimit-remaining-tokens"]) == ("60", "0")
        assert said["x-ratelimit-reset-tokens"].startswith("1m")  # 80 tokens, one a second


async def test_models_are_retrieved_by_name() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        assert (await here.openai.models.retrieve(MODEL)).id == MODEL
        assert (await here.anthropic.models.retrieve(MODEL)).id == MODEL
        with pytest.raises(openai.NotFoundError, match=r"does not exist\. Available"):
            await here.openai.models.retrieve("other")


async def test_n_choices_take_n_seats() -> None:
    async with running(SCRIPT) as engine, running_gateway(config_for([engine], seats=4)) as here:

        def call(n: int) -> asyncio.Task[Any]:
            ask = {"model": MODEL, "messages": ASK, "max_tokens": 20, "n": n}
            return asyncio.create_task(here.openai.chat.completions.create(**ask))

        await asyncio.gather(*[call(n) for n in (3, 1, 2, 4, 1, 3)])
        assert engine.record()["highest_running"] <= 4
        with pytest.raises(openai.BadRequestError, match="`n`"):
            await call(5)


@pytest.mark.usefixtures("no_reserve")
async def test_more_choices_than_the_floor_allows_are_downgraded() -> None:
    async with running(SCRIPT) as engine, running_gateway(with_fast([engine])) as here:
        ask: Any = {"model": MODEL, "messages": ASK, "max_tokens": 5, "service_tier": "fast"}
        state = here.gateway.machine.pools[MODEL].replica_state(engine.url)
        assert state is not None
        allowed = state.caps[80.0]
        fits = await here.openai.chat.completions.create(**ask, n=allowed)
        assert fits.service_tier == "fast"
        too_many = await here.openai.chat.completions.create(**ask, n=allowed + 1)
        assert too_many.service_tier == "default"
        assert too_many.usage.headway["reason"] == "too_many_choices"

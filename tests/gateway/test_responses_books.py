"""Money on /v1/responses: what is billed, refunded and counted, wherever a stream ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest

from headway.engines.scripted import Faults, running
from headway.ledger.keys import Key
from tests.gateway.test_books import KEY, QUICK, SLOW, desk
from tests.running import MODEL

pytestmark = pytest.mark.anyio
ASK: dict[str, Any] = {"model": MODEL, "input": "two words"}


@pytest.mark.parametrize("streamed", [True, False])
async def test_every_call_is_billed_at_the_tier_served(streamed: bool, tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        asked = {**ASK, "max_output_tokens": 20, "service_tier": "fast", "prompt_cache_key": "s-1"}
        if streamed:
            stream = await at.here.openai.responses.create(**asked, stream=True)
            response = [event async for event in stream][-1].response
        else:
            response = await at.here.openai.responses.create(**asked)
        cost = 3 * (response.usage.input_tokens + 10 * 20)
        proof = response.usage.to_dict()["headway"]
        assert (proof["billed_micro"], proof["refunded_micro"]) == (cost, 0)
        served = await at.one()
        assert (served.tier, served.amount, served.output_tokens, served.session) == ("fast", cost, 20, "s-1")
        assert response.id == f"resp_{served.call_id}"
        # What is counted, not generated, costs nothing and leaves no entry.
        await at.here.openai.responses.input_tokens.count(**ASK)
        assert len(await at.entries()) == 3


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_missed_floor_is_refunded(streamed: bool, tmp_path: Path) -> None:
    async with running(SLOW) as engine, desk(tmp_path, [engine], floor_tps=200.0) as at:  # it gives 50
        asked = {**ASK, "max_output_tokens": 20, "service_tier": "fast"}
        if streamed:
            stream = await at.here.openai.responses.create(**asked, stream=True)
            response = [event async for event in stream][-1].response
        else:
            response = await at.here.openai.responses.create(**asked)
        standard = response.usage.input_tokens + 10 * 20
        proof = response.usage.to_dict()["headway"]
        assert proof["kept"] is False
        assert (proof["billed_micro"], proof["refunded_micro"]) == (standard, 2 * standard)
        assert (await at.one("refunded")).amount == -2 * standard


async def test_a_stream_the_client_cut_is_billed_for_what_was_produced(tmp_path: Path) -> None:
    """The prompt is not known before the end, and is not billed: an estimate could be too much."""
    async with running(SLOW) as engine, desk(tmp_path, [engine]) as at:
        stream = await at.here.openai.responses.create(**ASK, max_output_tokens=500, stream=True)
        deltas = 0
        async for event in stream:
            deltas += event.type == "response.output_text.delta"
            if deltas == 10:
                break
        await stream.close()
        served = await at.one()
        assert served.outcome == "left"
        assert 10 <= served.output_tokens <= engine.steps.requests[served.call_id].tokens_sent < 500
        assert served.prompt_tokens == 0
        assert served.amount == 10 * served.output_tokens


async def test_an_engine_that_dies_is_not_billed_beyond_what_was_delivered(tmp_path: Path) -> None:
    async with running(QUICK) as engine, desk(tmp_path, [engine]) as at:
        engine.faults = Faults(die_after_tokens=7, times=1)
        stream = await at.here.openai.responses.create(**ASK, max_output_tokens=50, stream=True)
        events = [event async for event in stream]
        assert events[-1].type == "response.failed"
        served = await at.one()
        assert (served.outcome, served.output_tokens) == ("failed", 7)


async def test_a_whole_answer_that_is_abandoned_is_counted(tmp_path: Path) -> None:
    async with running(SLOW) as engine, desk(tmp_path, [engine]) as at:
        with pytest.raises(openai.APITimeoutError):
            await at.here.openai.responses.create(**ASK, max_output_tokens=500, timeout=0.5)
        served = await at.one()
        assert served.undelivered is not None
        assert served.undelivered > 0


async def test_a_key_with_a_budget_and_a_default_tier(tmp_path: Path) -> None:
    key = msgspec.structs.replace(KEY, budget_day=2_000_000, default_tier="fast")
    async with running(QUICK) as engine, desk(tmp_path, [engine], key=key) as at:
        response = await at.here.openai.responses.create(**ASK)
        assert response.service_tier == "fast"
        assert response.max_output_tokens is not None  # set, so that the highest cost is known
        await at.one()


async def test_a_key_that_does_not_allow_the_tier(tmp_path: Path) -> None:
    key: Key = msgspec.structs.replace(KEY, tiers=["standard"])
    async with running(QUICK) as engine, desk(tmp_path, [engine], key=key) as at:
        with pytest.raises(openai.PermissionDeniedError):
            await at.here.openai.responses.create(**ASK, service_tier="fast")

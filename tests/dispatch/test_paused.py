"""Streams that have lost their engine while no dispatcher decides."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.dispatch import remote
from headway.engines.scripted import Faults, running
from headway.engines.scripted.formats import WORDS
from tests.dispatch.test_cell import SLOW, Cell, running_cell
from tests.running import config_for

pytestmark = pytest.mark.anyio


async def begun(cell: Cell, tokens: int, tier: str = "default") -> tuple[Any, list[Any]]:
    """A stream, and its first ten chunks."""
    stream = await cell.relays[0].call(tokens, tier, stream=True, stream_options={"include_usage": True})
    return stream, [await anext(stream) for _ in range(10)]


async def test_a_paused_stream_goes_on_under_another_leader(tmp_path: Path) -> None:
    async with running(SLOW) as engine, running_cell(tmp_path, config_for([engine]), relays=1) as cell:
        stream, chunks = await begun(cell, 60)
        await cell.die()
        engine.faults = Faults(die_after_tokens=1)
        [trip] = cell.relays[0].gateway._trips.values()
        await cell.until(lambda: trip.moves == 1)
        engine.faults = Faults()
        await cell.lead()
        chunks += [chunk async for chunk in stream]
        text = "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)
        assert text == "".join(WORDS[:60])
        usage: Any = chunks[-1].usage
        assert (usage.completion_tokens, usage.headway["moves"]) == (60, 1)
        await cell.until_empty()


@pytest.mark.parametrize("tier", ["default", "fast"])
async def test_without_a_dispatcher_its_pause_ends(tmp_path: Path, tier: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A fast stream is not served as standard then: nobody has a seat to give."""
    monkeypatch.setattr(remote, "MAX_PAUSE_S", 0.3)
    async with running(SLOW) as engine:
        fast = [{"name": "fast", "floor_tps": 20.0, "max_hold_s": 60.0}]
        config = config_for([engine], express=fast, curve=[[1, 50.0], [8, 40.0]], tier={"max_hold_s": 60.0})
        async with running_cell(tmp_path, config, relays=1) as cell:
            stream, _ = await begun(cell, 60, tier)
            await cell.die()
            engine.faults = Faults(die_after_tokens=1)
            with pytest.raises(openai.APIError, match="closed the connection"):
                async with asyncio.timeout(10):
                    [chunk async for chunk in stream]
            await cell.until(lambda: not cell.relays[0].gateway._trips)

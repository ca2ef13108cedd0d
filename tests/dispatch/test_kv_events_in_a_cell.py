"""With relays, one of them hears what an engine has evicted, and the dispatcher hears of keys only."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headway.core.types import ReplicaCacheLost
from headway.dispatch.record import replay
from headway.engines.scripted import running
from tests.dispatch.test_cell import QUICK, Relay, running_cell
from tests.engines.test_kv_events import removed, stored, tokens
from tests.gateway.test_kv_events import config_with, publishing
from tests.running import MODEL

pytestmark = pytest.mark.anyio
PROMPT = "where is the bus " * 200


async def ask(relay: Relay) -> None:
    async for _ in await relay.sdk.completions.create(model=MODEL, prompt=PROMPT, max_tokens=3, stream=True):
        pass


async def test_the_relay_that_probes_a_replica_tells_the_dispatcher_which_keys_are_lost(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    async with (
        running(QUICK) as engine,
        publishing() as publisher,
        running_cell(tmp_path, config_with(publisher, engine.url), record=record) as cell,
    ):
        holder = cell.dispatcher.cell._dealing.holder(engine.url)
        [prober] = [relay for relay in cell.relays if relay.dispatch._run == holder]
        [other] = [relay for relay in cell.relays if relay is not prober]
        followers: list[Any] = [one.gateway.replicas._watched[engine.url].kv_events for one in (prober, other)]
        assert [one._events is not None for one in followers] == [True, False]

        told: list[ReplicaCacheLost] = []
        tell = followers[0]._tell

        def note(event: ReplicaCacheLost) -> None:
            told.append(event)
            tell(event)

        followers[0]._tell = note
        joined: list[Any] = []
        read = followers[0].read
        followers[0].read = joined.append
        for relay in (prober, other):
            await ask(relay)
            await cell.until_empty()
        [prompt] = joined  # the other relay's call is not followed
        part = cell.pool.prefixes.parts[engine.url]
        assert part.keys == len(prompt.keys)

        ids = [int(one) for one in prompt.ids.split(b",")]
        whole = ids[: len(ids) // 4 * 4]
        events = followers[0]._events
        await publisher.until(lambda: events._next is not None, stored(tokens(4, 9000)))
        await publisher.send(stored(whole))
        read(prompt)
        await publisher.send(removed(whole[: len(whole) // 8 * 4]))
        await publisher.until(lambda: 0 < part.keys < len(prompt.keys))
        await publisher.send(removed(whole[:4]))
        await publisher.until(lambda: part.keys <= 1)  # the shortest prefix may be shorter than a block
        assert told
        assert all(event.keys for event in told)
        await publisher.send({"type": "AllBlocksCleared"})
        await publisher.until(lambda: not cell.pool.prefixes.parts[engine.url].keys)
        assert cell.pool.open_replicas == 1
        await ask(other)
    assert replay(record).first_difference is None

"""Replicas and the configuration of a cell change while it serves."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import NotFoundError

from headway.config import Config
from headway.core.demand import PoolDemand
from headway.dispatch.record import replay
from headway.engines.scripted import Script, ScriptedEngine, running
from tests.dispatch.test_cell import ASK, QUICK, SLOW, Cell, running_cell
from tests.gateway.test_live import AS_ADMIN, HASHED
from tests.running import MODEL, config_for

pytestmark = pytest.mark.anyio


def configured(*engines: ScriptedEngine, seats: int = 4, **more: Any) -> Config:
    return config_for(list(engines), seats=seats, admin_key_hashes=[HASHED], **more)


def registered_config(engine: ScriptedEngine) -> Config:
    table = configured(engine).model_dump(exclude_none=True)
    table["models"][0]["replicas"] = []
    table["models"][0]["discover"] = {"registered": True, "seats": 4}
    return Config.model_validate(table)


async def ask_admin(cell: Cell, relay: int, path: str, order: dict[str, Any] | None = None) -> Any:
    url = str(cell.relays[relay].sdk.base_url).removesuffix("/v1/")
    async with httpx.AsyncClient(base_url=url, headers=AS_ADMIN) as client:
        answer = await (client.get(path) if order is None else client.post(path, json=order))
        answer.raise_for_status()
        return answer.json()


async def states(cell: Cell, relay: int = 0) -> dict[str, str]:
    return {one["url"]: one["state"] for one in (await ask_admin(cell, relay, "/admin/replicas"))["replicas"]}


def running_on(engine: ScriptedEngine) -> int:
    return int(engine.record()["running"])


async def test_replicas_come_and_go_in_all_relays(tmp_path: Path) -> None:
    record = tmp_path / "record.jsonl"
    async with running(SLOW) as a, running(SLOW) as b, running_cell(tmp_path, configured(a), record=record) as cell:
        calls = [asyncio.create_task(relay.call(50)) for relay in cell.relays for _ in range(4)]
        await cell.until(lambda: running_on(a) == 4)
        cell.change(configured(a, b, seats=2))
        await cell.until(lambda: running_on(b) == 2)
        cell.change(configured(b, seats=2))
        await asyncio.gather(*calls)
        await cell.until(lambda: list(cell.dispatcher.cell.fleet.members) == [b.url])
        await cell.until(lambda: all(list(relay.gateway.replicas.pools) == [b.url] for relay in cell.relays))
        assert b.record()["highest_running"] == 2
        await asyncio.gather(*[relay.call(5) for relay in cell.relays])
    assert replay(record).first_difference is None


async def test_models_change_in_all_relays(tmp_path: Path) -> None:
    async with running(SLOW) as a, running(Script(model="other")) as b, running_cell(tmp_path, configured(a)) as cell:
        running_call = asyncio.create_task(cell.relays[0].call(50))
        await cell.until(lambda: running_on(a) == 1)
        other = configured(b).model_dump()
        other["models"][0]["name"] = "other"
        cell.change(Config.model_validate(other))
        await cell.until(lambda: cell.dispatcher.machine.pools["other"].open_replicas)
        for relay in cell.relays:
            with pytest.raises(NotFoundError):
                await relay.call()
            answer = await relay.sdk.chat.completions.create(model="other", messages=ASK, max_tokens=5)
            assert answer.usage is not None
        assert (await running_call).usage.completion_tokens == 50


async def test_what_is_drained_by_one_relay_stays_so_after_a_takeover(tmp_path: Path) -> None:
    async with running(QUICK) as a, running(QUICK) as b, running_cell(tmp_path, configured(a, b)) as cell:
        await ask_admin(cell, 0, "/admin/drain", {"url": a.url})
        assert await states(cell, 1) == {a.url: "draining", b.url: "open"}
        await cell.die()
        await cell.lead()
        await cell.until_open(1)
        assert await states(cell, 1) == {a.url: "draining", b.url: "open"}
        finished = a.record()["finished"]
        await asyncio.gather(*[relay.call() for relay in cell.relays for _ in range(4)])
        assert a.record()["finished"] == finished
        await ask_admin(cell, 1, "/admin/drain", {"url": a.url, "undo": True})
        await cell.until_open(2)
        await cell.die()
        await cell.lead()
        await cell.until_open(2)


async def test_a_relay_tells_what_the_calls_of_all_relays_need(tmp_path: Path) -> None:
    async with running(SLOW) as engine, running_cell(tmp_path, configured(engine)) as cell:
        calls = [asyncio.create_task(relay.call(50)) for relay in cell.relays for _ in range(3)]
        await cell.until(lambda: running_on(engine) == 4)
        await cell.until(lambda: cell.dispatcher.machine.calls == len(calls))
        [pool] = (await ask_admin(cell, 1, "/admin/demand"))["pools"]
        assert [(row["tier"], row["wanted"], row["ready"]) for row in pool["tiers"]] == [("standard", len(calls), 4)]
        assert PoolDemand(**pool["demand"]).standard_held == len(calls) - 4
        await asyncio.gather(*calls)


async def test_the_console_of_any_relay_shows_the_whole_cell(tmp_path: Path) -> None:
    async with running(SLOW) as engine, running_cell(tmp_path, configured(engine)) as cell:
        calls = [asyncio.create_task(relay.call(50)) for relay in cell.relays for _ in range(3)]
        await cell.until(lambda: cell.dispatcher.machine.calls == len(calls) and running_on(engine) == 4)
        for relay in range(2):
            live = await ask_admin(cell, relay, "/admin/live")
            assert live["replicas"][0]["aboard"] == {"standard": 4}
            [standard] = live["tiers"]
            assert (standard["wanted"], standard["ready"], standard["held"]) == (6, 4, 2)
            assert (live["cell"]["role"], live["cell"]["epoch"]) == ("leader", cell.epoch)
            assert [(one["name"], one["calls"]) for one in live["cell"]["relays"]] == [("relay-0", 3), ("relay-1", 3)]
        await asyncio.gather(*calls)


async def test_what_was_registered_at_one_relay_stays_so_after_a_takeover(tmp_path: Path) -> None:
    async with running(SLOW) as a, running(SLOW) as b, running_cell(tmp_path, registered_config(a)) as cell:
        await ask_admin(cell, 0, "/admin/registered", {"model": MODEL, "urls": [a.url, b.url]})
        await cell.until_open(2)
        streams = [asyncio.create_task(relay.call(100)) for relay in cell.relays for _ in range(2)]
        await cell.until(lambda: running_on(a) and running_on(b))
        await cell.die()
        calls = [asyncio.create_task(relay.call()) for relay in cell.relays for _ in range(4)]
        await cell.lead()
        await asyncio.gather(*streams, *calls)  # they wait for engines that the new dispatcher has only heard of
        await cell.until_open(2)
        await ask_admin(cell, 1, "/admin/registered", {"model": MODEL, "urls": [b.url]})
        await cell.until(lambda: list(cell.dispatcher.cell.fleet.members) == [b.url])
        await cell.die()
        await cell.lead()
        await cell.until_open(1)
        assert await states(cell, 1) == {b.url: "open"}


async def test_streams_on_a_replica_that_the_next_dispatcher_does_not_want_run_to_their_end(tmp_path: Path) -> None:
    async with running(SLOW) as a, running(SLOW) as b, running_cell(tmp_path, configured(a, b, seats=1)) as cell:
        calls = [asyncio.create_task(relay.call(100)) for relay in cell.relays]
        await cell.until(lambda: running_on(a) == running_on(b) == 1)
        await cell.die()
        cell.config = configured(b, seats=1)
        await cell.lead()
        answers = await asyncio.gather(*calls)
        assert [answer.usage.completion_tokens for answer in answers] == [100, 100]
        await cell.until(lambda: list(cell.dispatcher.cell.fleet.members) == [b.url])


async def test_a_relay_that_was_cut_off_learns_what_has_changed(tmp_path: Path) -> None:
    async with running(QUICK) as a, running(QUICK) as b, running_cell(tmp_path, configured(a)) as cell:
        relay = cell.relays[0]
        session = next(one for one in cell.dispatcher.sessions.values() if one.relay == "relay-0")
        session.link.abort("cut")
        cell.change(configured(b))
        await cell.until(lambda: list(relay.gateway.replicas.pools) == [b.url])
        await relay.call()
        assert MODEL in cell.dispatcher.machine.pools

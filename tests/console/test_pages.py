"""The console's pages on a running gateway: an operator sees what happens, and nobody else sees it."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from headway.config import load
from headway.console import pages, snapshot
from headway.engines.scripted import Script, running
from headway.ledger import reading
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from tests.running import MODEL, Running, running_gateway

pytestmark = pytest.mark.anyio
SLOW = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.02),))
ADMIN, OWNER, TENANT = "an-admin-key", "an-owner-key", "a-tenant-key"
AS_ADMIN = {"authorization": f"Bearer {ADMIN}"}
FIGURES = ("live", "offers", "money", "keys", "mistakes")


def hashed(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


def toml(url: str, *lines: str, more: str = "") -> str:
    """`lines` are of the table [gateway]."""
    return "\n".join(
        [
            "[gateway]",
            "port = 0",
            "probe_interval_s = 0.05",
            f'admin_key_hashes = ["{hashed(ADMIN)}"]',
            f'key_hashes = ["{hashed(OWNER)}"]',
            *lines,
            more,
            "[[models]]",
            f'name = "{MODEL}"',
            "price = { input = 1.0, output = 2.0, replica_hour = 3.6 }",
            '[[models.tiers]]\nname = "standard"',
            '[[models.tiers]]\nname = "fast"\nfloor_tps = 2.0\nprice_multiple = 2.0',
            f'[[models.replicas]]\nurl = "{url}"\nseats = 4\ncurve = [[1, 50.0], [4, 40.0]]',
        ]
    )


@asynccontextmanager
async def gateway(tmp_path: Path, text: str) -> AsyncIterator[Running]:
    path = tmp_path / "headway.toml"
    path.write_text(text)
    async with running_gateway(load(path), source=path) as here:
        yield here


async def get(here: Running, path: str, headers: dict[str, str] = AS_ADMIN) -> httpx.Response:
    async with httpx.AsyncClient(base_url=here.url) as client:
        return await client.get(path, headers=headers)


async def figures(here: Running, name: str = "live") -> Any:
    answer = await get(here, f"/admin/{name}")
    assert answer.status_code == 200, answer.text
    return answer.json()


def call(here: Running, tier: str, tokens: int, key: str = OWNER) -> asyncio.Task[Any]:
    asked: Any = {"model": MODEL, "prompt": "hi", "max_tokens": tokens, "extra_body": {"service_tier": tier}}
    return asyncio.create_task(here.openai.with_options(api_key=key).completions.create(**asked))


async def test_the_live_page_says_who_is_aboard_and_what_was_served(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(pages, "LIVE_S", 0.0)
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url)) as here:
        calls = [call(here, "fast", 100) for _ in range(2)]
        async with asyncio.timeout(20):
            while (live := await figures(here))["replicas"][0]["aboard"] != {"fast": 2}:
                await asyncio.sleep(0.01)
        [replica] = live["replicas"]
        assert (replica["name"], replica["state"], replica["seats"]) == (engine.url, "open", 4)
        assert replica["is_light"]
        assert replica["light_seats"] == 4
        fast = next(row for row in live["tiers"] if row["tier"] == "fast")
        assert (fast["model"], fast["floor_tps"], fast["price_multiple"], fast["held"]) == (MODEL, 2.0, 2.0, 0)
        assert fast["wanted"] >= 2
        await asyncio.gather(*calls)
        await call(here, "default", 100)
        await here.until_empty()
        live = await figures(here)
        assert live["replicas"][0]["tokens"] == 300
        standard, fast = live["tiers"]
        assert (fast["calls"], standard["calls"]) == ({"finished": 2}, {"finished": 1})
        assert (fast["kept"], fast["missed"], fast["output_tokens"]) == (2, 0, 200)
        assert sum(fast["speed"]["counts"]) == sum(fast["first_token"]["counts"]) == 2
        assert len(fast["speed"]["counts"]) == len(fast["speed"]["buckets"]) + 1
        assert (live["cell"], live["more_replicas"], live["processes_unanswered"]) == (None, 0, 0)


async def test_viewers_share_one_snapshot(tmp_path: Path, monkeypatch: Any) -> None:
    made = 0
    make = snapshot.make_snapshot

    def counting(*read: Any) -> Any:
        nonlocal made
        made += 1
        return make(*read)

    monkeypatch.setattr(pages, "make_snapshot", counting)
    monkeypatch.setattr(pages, "LIVE_S", 60.0)
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url)) as here:
        answers = await asyncio.gather(*[get(here, "/admin/live") for _ in range(50)])
        assert {answer.status_code for answer in answers} == {200}
        assert len({answer.content for answer in answers}) == 1
        assert made == 1


async def test_only_an_admin_sees_figures(tmp_path: Path) -> None:
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url)) as here:
        for name in FIGURES:
            assert (await get(here, f"/admin/{name}", {})).status_code == 401
            assert (await get(here, f"/admin/{name}", {"x-api-key": OWNER})).status_code == 403
            assert engine.url not in (await get(here, f"/admin/{name}", {"x-api-key": OWNER})).text


async def test_the_page_is_for_anyone_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url)) as here:
        page = await get(here, "/console", {})
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert page.headers["content-security-policy"].startswith("default-src 'none'; script-src 'self'")
        assert (page.headers["x-content-type-options"], page.headers["referrer-policy"]) == ("nosniff", "no-referrer")
        assert engine.url not in page.text
        for name in ("../pages.py", "%2e%2e%2fpages.py", "pages.py", "none.js"):
            assert (await get(here, f"/console/{name}", {})).status_code == 404


async def test_offers_have_the_frontier(tmp_path: Path) -> None:
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url)) as here:
        offers = await figures(here, "offers")
        [pool] = offers["pools"]
        assert [streams for streams, _ in pool["curve"]] == [1, 2, 3, 4]
        assert pool["curve"][0][1] == pytest.approx(50.0, rel=0.01)
        assert pool["floors"] == [{"model": MODEL, "tier": "fast", "floor_tps": 2.0, "streams": 4}]
        [model] = offers["models"]
        assert (model["tiers"], model["price"]["output"], model["auto"]) == (["standard", "fast"], 2.0, False)


async def test_without_a_ledger_or_results_there_is_nothing_to_show(tmp_path: Path) -> None:
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url)) as here:
        for name in ("money", "keys", "mistakes"):
            [(field, why)] = (await figures(here, name)).items()
            assert field == "not_kept"
            assert "headway.toml" in why or "eval_results" in why


async def test_money_and_keys_are_those_of_the_books(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(reading, "KEPT_S", 0.0)
    monkeypatch.setattr(reading, "MAX_SHARE", float("inf"))
    url = f"sqlite:///{tmp_path}/books.db"
    store = open_store(url)
    store.migrate()
    name = '<img src=x onerror="alert(1)">'
    first_key = Key(id="key-1", hash=key_hash(TENANT.encode()), name=name, requests_pm=60)
    store.put_key(msgspec.structs.replace(first_key, budget_day=10_000_000, budget_month=90_000_000))
    store.put_key(Key(id="key-2", hash=key_hash(b"old"), revoked_us=1))
    store.close()
    ledger = f'[ledger]\nstore = "{url}"\nspool = "{tmp_path}/spool"'
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url, more=ledger)) as here:
        await asyncio.gather(call(here, "fast", 50, TENANT), call(here, "default", 50, TENANT))
        async with asyncio.timeout(20):
            while len(tiers := (await figures(here, "money"))["tiers"]) < 2:
                await asyncio.sleep(0.05)
        fast, standard = tiers
        assert (fast["tier"], fast["calls"], fast["output_tokens"]) == ("fast", 1, 50)
        assert fast["revenue_micro"] == 2 * standard["revenue_micro"] > 0
        assert fast["refunded_micro"] == 0
        assert fast["cost_micro"] == fast["seat_us"] * 3_600_000 // 3_600_000_000
        keys = await figures(here, "keys")
        first, second = keys["keys"]
        assert (first["id"], first["name"], first["calls_today"], first["is_revoked"]) == ("key-1", name, 2, False)
        assert first["spent_today_micro"] == fast["revenue_micro"] + standard["revenue_micro"]
        assert (first["budget_day_micro"], first["requests_per_minute"]) == (10_000_000, 60)
        # What the gateway holds of the budget counts too, until it gives back what is not spent.
        assert first["spent_today_micro"] <= first["reserved_month_micro"] <= first["budget_month_micro"] == 90_000_000
        assert second["reserved_month_micro"] is None
        assert (second["id"], second["is_revoked"]) == ("key-2", True)
        assert "hash" not in json.dumps(keys)
        assert (await get(here, "/admin/keys", {"x-api-key": TENANT})).status_code == 403


async def test_mistakes_are_those_of_the_last_evaluation(tmp_path: Path) -> None:
    interval = {"value": 2.0, "low": 1.0, "high": 3.0}
    versus = {"excess": {"value": 0.02, "low": -0.01, "high": 0.05}}
    figures_of = [
        {"name": "standard", "right": {"count": 95, "of": 100}, "answer_s": interval, "time_to_right_s": interval},
        {
            "name": "spark",
            "right": {"count": 88, "of": 100},
            "answer_s": interval,
            "time_to_right_s": interval,
            "versus": versus,
        },
    ]
    verdict = {"tasks": 100, "figures": figures_of, "recommended": {"use": "spark", "is_clear": True}}
    results = tmp_path / "results.json"
    results.write_bytes(msgspec.json.encode({"asked": {"tasks": "routine"}, "verdicts": [verdict], "runs": []}))
    async with running(SLOW) as engine, gateway(tmp_path, toml(engine.url, f'eval_results = "{results}"')) as here:
        mistakes = await figures(here, "mistakes")
        standard, spark = mistakes["rows"]
        assert (mistakes["tasks"], mistakes["is_clear"]) == ("routine", True)
        assert (standard["right"], standard["excess"], standard["is_recommended"]) == (0.95, None, False)
        assert standard["right_low"] < 0.95 < standard["right_high"]
        assert (spark["excess"], spark["excess_high"], spark["is_recommended"]) == (0.02, 0.05, True)
        results.write_text("{")
        assert "headway eval" in (await figures(here, "mistakes"))["not_kept"]

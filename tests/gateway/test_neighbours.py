"""What one key does to the gateway leaves its neighbours their seats, their time, their memory and their secrets."""

from __future__ import annotations

import asyncio
import json
import tracemalloc
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

import openai
import pytest

from headway.api import check_time
from headway.config import Config
from headway.core.rate_limit import TokenLimit
from headway.engines.scripted import Script, running
from headway.errors import Refused
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from tests.running import MODEL, Running, config_for, post, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
STILL = Script(model=MODEL, first_token_s=0.005, step_s=((1, 60.0),))  # one token, and then no other
KEYS = ("key-of-a", "key-of-b")
HASHES = [sha256(key.encode()).hexdigest() for key in KEYS]


def chat(key: str, size: int) -> bytes:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a" * size}], "max_tokens": 2}
    return post("/v1/chat/completions", json.dumps(body).encode(), b"x-api-key: " + key.encode())


def code_of(answer: bytes) -> object:
    return json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]


@asynccontextmanager
async def waiting(here: Running, *requests: bytes) -> AsyncIterator[None]:
    """Send requests, one after the other, and leave them waiting: the first of all has the only seat."""
    writers, before = [], here.gateway.machine.calls
    try:
        for number, request in enumerate(requests):
            _, writer = await asyncio.open_connection("127.0.0.1", here.port)
            writers.append(writer)
            writer.write(request)
            await writer.drain()
            async with asyncio.timeout(20):
                while here.gateway.machine.calls <= before + number:
                    await asyncio.sleep(0.01)
        yield
    finally:
        for writer in writers:
            writer.close()


async def test_held_calls_have_a_byte_budget_per_key_and_in_all() -> None:
    a, b = KEYS
    async with running(STILL) as engine:
        config = config_for(
            [engine], seats=1, stall_s=60.0, key_hashes=HASHES, max_held_bytes_per_key=25_000, max_held_bytes=40_000
        )
        async with running_gateway(config) as here:
            async with waiting(here, chat(a, 10_000), chat(a, 10_000), chat(a, 10_000)):
                refused = await here.raw(chat(a, 10_000))
                assert b" 429 " in refused.splitlines()[0]
                assert b"retry-after: " in refused
                assert code_of(refused) == "held_bytes"
                async with waiting(here, chat(b, 10_000)):
                    assert code_of(await here.raw(chat(b, 10_000))) == "held_bytes", "of all keys"
                    page = here.gateway.metrics.page()
                    assert b'headway_calls_total{model="scripted",outcome="refused",tier="standard"} 2.0' in page
            await here.until_empty()
            assert here.gateway._held_bytes.held == 0


async def test_a_held_call_keeps_its_bytes_once() -> None:
    size, held = 2_000_000, 4
    async with running(STILL) as engine, running_gateway(config_for([engine], seats=1, stall_s=60.0)) as here:
        small, large = chat("any", 10), chat("any", size)
        async with waiting(here, small):
            tracemalloc.start()
            try:
                async with waiting(here, *[large] * held):
                    kept, _ = tracemalloc.get_traced_memory()
            finally:
                tracemalloc.stop()
        await here.until_empty()
    assert size * held < kept < 1.75 * size * held  # what msgspec encodes has up to half as much unused space behind it


async def test_a_client_with_a_large_request_that_leaves_is_noticed() -> None:
    """Reading was paused after a large piece of the body, so that nobody saw the end of the connection."""
    async with running(STILL) as engine, running_gateway(config_for([engine], seats=1, stall_s=60.0)) as here:
        async with waiting(here, *[chat("any", 2_000_000)] * 2):
            pass
        await here.until_empty()


async def test_a_key_whose_requests_take_long_to_check_is_refused_and_others_are_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b = KEYS
    monkeypatch.setattr(check_time, "FREE_S", 0.0)
    monkeypatch.setattr(check_time, "LIMIT", TokenLimit(input_tpm=1_000))
    parts = json.dumps([{"type": "text", "text": ""}] * 1000)
    message = f'{{"role":"user","content":{parts}}}'
    body = f'{{"model":"{MODEL}","max_tokens":2,"messages":[{",".join([message] * 50)}],"wrong":0}}'.encode()
    async with running(QUICK) as engine, running_gateway(config_for([engine], key_hashes=HASHES)) as here:
        expensive = post("/v1/chat/completions", body, b"x-api-key: " + a.encode())
        assert b" 400 " in (await here.raw(expensive)).splitlines()[0], "checked and refused, which took its time"
        refused = await here.raw(chat(a, 10))
        assert b" 429 " in refused.splitlines()[0]
        assert b"retry-after: " in refused
        assert code_of(refused) == "check_time"
        assert b" 200 " in (await here.raw(chat(b, 10))).splitlines()[0]


def test_time_for_checking_comes_back_and_short_checks_are_free() -> None:
    now = [0.0]
    time = check_time.CheckTime(clock=lambda: now[0])
    for _ in range(10_000):
        time.charge("a", check_time.FREE_S)
    time.admit("a")
    time.charge("a", 4.0)
    with pytest.raises(Refused) as refused:
        time.admit("a")
    time.admit("b")
    now[0] += refused.value.retry_after_s
    time.admit("a")


async def test_a_key_sees_the_models_and_tiers_that_it_may_use(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    secrets = {"all": "hw-of-all", "some": "hw-of-some"}
    store.put_key(Key(id="all", hash=key_hash(secrets["all"].encode())))
    some = Key(id="some", hash=key_hash(secrets["some"].encode()), models=["other"], tiers=["standard"])
    store.put_key(some)
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    async with running(QUICK) as engine:
        tables = config_for([engine], ledger=ledger).model_dump()
        other = {"name": "other", "replicas_of": MODEL, "tiers": [{"name": "standard"}, {"name": "flex"}]}
        config = Config.model_validate({**tables, "models": [*tables["models"], other]})
        async with running_gateway(config, key=secrets["all"]) as here:
            assert [model.id async for model in here.openai.models.list()] == [MODEL, "other"]
            sdk = here.openai.with_options(api_key=secrets["some"])
            assert [model.id async for model in sdk.models.list()] == ["other"]
            row = (await sdk.models.retrieve("other")).model_dump()
            assert [tier["name"] for tier in row["service_tiers"]] == ["standard"]
            with pytest.raises(openai.NotFoundError) as unknown:
                await sdk.models.retrieve(MODEL)
            assert "Available: other." in unknown.value.message
            with pytest.raises(openai.NotFoundError) as unknown:
                await sdk.completions.create(model="none", prompt="hi", max_tokens=1)
            assert MODEL not in unknown.value.message
    store.close()

"""Embeddings through the whole gateway, with the official SDK and an engine that serves an embedding model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from headway import http1
from headway.config import Config
from headway.engines.scripted import Faults, Script, ScriptedEngine, running
from headway.engines.scripted.embeddings import vector_of
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.ledger.verify import verify, verify_budgets
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
SIZE = 8
EMBED = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.001),), embedding_size=SIZE)
CHAT = replace(EMBED, model="chat", embedding_size=0)
ASK: Any = [{"role": "user", "content": "two words"}]
SECRET = "hw-a-key-for-tests"
KEY = Key(id="key-test", hash=key_hash(SECRET.encode()))


def config_of(engines: list[ScriptedEngine], *others: dict[str, Any], **settings: Any) -> Config:
    plain = config_for(engines, **settings).model_dump()
    [model] = plain["models"]
    model |= {"embeddings": True, "aliases": ["text-embedding-*"]}
    return Config.model_validate({**plain, "models": [model, *others]})


def config_with_chat(engine: ScriptedEngine, chat: ScriptedEngine) -> Config:
    return config_of([engine], {"name": "chat", "replicas": [{"url": chat.url}]})


@asynccontextmanager
async def books(tmp_path: Path, engine: ScriptedEngine, key: Key = KEY) -> AsyncIterator[tuple[Running, SQLiteStore]]:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(key)
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    # One micro-unit per prompt token; no embedding has output tokens.
    config = config_of([engine], price={"input": 1.0, "output": 10.0}, ledger=ledger)
    async with running_gateway(config, key=SECRET) as here:
        yield here, store
    verdict = verify(store.entries())
    verify_budgets(verdict, store.slices(), store.keys_since(0))
    assert (verdict.problems, verdict.open_calls) == ([], 0)
    store.close()


async def test_the_sdk_gets_the_same_vectors_in_both_forms() -> None:
    texts = ["a text", "another text of six words"]
    async with running(EMBED) as engine, running_gateway(config_of([engine])) as here:
        as_base64 = await here.openai.embeddings.create(model=MODEL, input=texts)  # the SDK's own default
        as_floats = await here.openai.embeddings.create(model=MODEL, input=texts, encoding_format="float")
    for answer in (as_base64, as_floats):
        assert [one.embedding for one in answer.data] == [pytest.approx(vector_of(text, SIZE)) for text in texts]
        assert [one.index for one in answer.data] == [0, 1]
        assert (answer.object, answer.model) == ("list", MODEL)
        assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (7, 7)


async def test_every_kind_of_input_and_size_is_served_under_every_name() -> None:
    async with running(EMBED) as engine, running_gateway(config_of([engine])) as here:
        create = here.openai.embeddings.create
        for given, vectors, tokens in (
            ("a text", 1, 2),
            ([5, 6, 7], 1, 3),
            ([[5, 6], [7]], 2, 3),
            (["word"] * 300, 300, 300),  # more than the engine runs at a time
        ):
            answer = await create(model="text-embedding-3-small", input=given)
            assert (len(answer.data), answer.usage.prompt_tokens) == (vectors, tokens)
        short = await create(model=MODEL, input="a text", dimensions=4, user="u")
        assert len(short.data[0].embedding) == 4
        with pytest.raises(openai.BadRequestError, match="dimensions=9"):
            await create(model=MODEL, input="a text", dimensions=9)
        with pytest.raises(openai.BadRequestError) as too_long:
            await create(model=MODEL, input=[[1] * 9_000])
        assert too_long.value.code == "context_length_exceeded"


async def test_an_answer_has_a_proof_without_a_speed() -> None:
    async with running(EMBED) as engine, running_gateway(config_of([engine])) as here:
        raw = await here.openai.embeddings.with_raw_response.create(
            model=MODEL, input="a text", extra_body={"truncation": False}
        )
        assert raw.headers["headway-tier-asked"] == raw.headers["headway-tier-served"] == "standard"
        assert raw.headers["headway-ignored"] == "truncation"
        usage: Any = raw.parse().usage
        assert usage.headway["tier_served"] == "standard"
        assert usage.headway["tokens_per_second"] is usage.headway["kept"] is None
        assert usage.headway["seat_seconds"] > 0


async def test_only_standard_is_offered() -> None:
    async with running(EMBED) as engine, running_gateway(config_of([engine])) as here:
        create = here.openai.embeddings.create
        with pytest.raises(openai.BadRequestError, match=r"not offered at `fast`\. Offered: standard"):
            await create(model=MODEL, input="a text", extra_headers={"Headway-Tier": "fast"})
        with pytest.raises(openai.BadRequestError, match="not offered at `flex`"):
            await create(model=f"{MODEL}-flex", input="a text")
        with pytest.raises(openai.BadRequestError, match="`service_tier` is not supported"):
            await create(model=MODEL, input="a text", extra_body={"service_tier": "priority"})
        await create(model=MODEL, input="a text", extra_body={"service_tier": "default"})
        await create(model=f"{MODEL}-standard", input="a text")


async def test_each_model_refuses_the_other_models_endpoints() -> None:
    async with (
        running(EMBED) as engine,
        running(CHAT) as chat,
        running_gateway(config_with_chat(engine, chat)) as here,
    ):
        with pytest.raises(openai.BadRequestError, match=f"Embedding models: {MODEL}"):
            await here.openai.embeddings.create(model="chat", input="a text")
        send = "send its input to `/v1/embeddings`"
        with pytest.raises(openai.BadRequestError, match=send):
            await here.openai.chat.completions.create(model=MODEL, messages=ASK)
        with pytest.raises(openai.BadRequestError, match=send):
            await here.openai.completions.create(model=MODEL, prompt="a text")
        with pytest.raises(anthropic.BadRequestError, match=send):
            await here.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=5)
        with pytest.raises(anthropic.BadRequestError, match=send):
            await here.anthropic.messages.count_tokens(model=MODEL, messages=ASK)


async def test_a_call_whose_engine_fails_is_served_by_another() -> None:
    async with running(EMBED) as bad, running(EMBED) as good, running_gateway(config_of([bad, good])) as here:
        bad.faults = good.faults = Faults(die_after_tokens=0, times=1)
        answer, other = await asyncio.gather(
            here.openai.embeddings.create(model=MODEL, input="a text"),
            here.openai.embeddings.create(model=MODEL, input="a text"),
        )
        assert answer.data[0].embedding == other.data[0].embedding
        await here.until_empty()


async def test_an_embedding_is_billed_by_its_prompt_tokens(tmp_path: Path) -> None:
    async with running(EMBED) as engine, books(tmp_path, engine) as (here, store):
        answer = await here.openai.embeddings.create(model=MODEL, input=["a text", "of five"], user="someone")
        usage: Any = answer.usage
        assert (usage.headway["billed_micro"], usage.headway["refunded_micro"]) == (4, 0)
        async with asyncio.timeout(20):
            while not any(entry.kind == "released" for entry in store.entries()):
                await asyncio.sleep(0.02)
        [served] = [entry for entry in store.entries() if entry.kind == "served"]
        assert (served.key, served.tier, served.amount) == ("key-test", "standard", 4)
        assert (served.prompt_tokens, served.output_tokens) == (4, 0)
        assert served.session == "someone"
        assert served.seat_us > 0


async def test_a_client_that_leaves_pays_nothing_and_its_seat_is_free_again(tmp_path: Path) -> None:
    async with running(EMBED) as engine, books(tmp_path, engine) as (here, store):
        seen = len(engine.record()["requests"])
        engine.faults = Faults(hang_after_tokens=0)
        asking = asyncio.create_task(here.openai.embeddings.create(model=MODEL, input=["a text", "of five"]))
        async with asyncio.timeout(20):
            while len(engine.record()["requests"]) < seen + 2:
                await asyncio.sleep(0.005)
        asking.cancel()
        await here.until_empty()
        engine.faults = Faults()
        assert engine.record()["running"] == 0
        async with asyncio.timeout(20):
            while not any(entry.kind == "released" for entry in store.entries()):
                await asyncio.sleep(0.02)
        [served] = [entry for entry in store.entries() if entry.kind == "served"]
        assert (served.amount, served.output_tokens) == (0, 0)


async def test_a_budget_is_reserved_before_a_call_is_served(tmp_path: Path) -> None:
    key = Key(id="key-test", hash=KEY.hash, budget_day=1_000)
    async with running(EMBED) as engine, books(tmp_path, engine, key) as (here, _store):
        await here.openai.embeddings.create(model=MODEL, input="a text")
        with pytest.raises(openai.APIStatusError, match="remaining budget") as refused:
            await here.openai.embeddings.create(model=MODEL, input="word " * 200)
        assert refused.value.status_code == 402


async def test_a_keys_models_and_limits_count(tmp_path: Path) -> None:
    key = Key(id="key-test", hash=KEY.hash, input_tpm=4)
    async with running(EMBED) as engine, books(tmp_path, engine, key) as (here, _store):
        raw = await here.openai.embeddings.with_raw_response.create(model=MODEL, input="a text of five words")
        assert raw.headers["x-ratelimit-limit-tokens"] == "4"
        with pytest.raises(openai.RateLimitError, match="limit per minute"):
            await here.openai.embeddings.create(model=MODEL, input="a text")
        with pytest.raises(openai.AuthenticationError):
            await here.openai.with_options(api_key="wrong").embeddings.create(model=MODEL, input="a text")


async def test_a_key_for_other_models_is_refused(tmp_path: Path) -> None:
    key = Key(id="key-test", hash=KEY.hash, models=["other"])
    async with running(EMBED) as engine, books(tmp_path, engine, key) as (here, _store):
        with pytest.raises(openai.PermissionDeniedError, match="does not allow the model"):
            await here.openai.embeddings.create(model=MODEL, input="a text")


async def test_an_answer_that_is_too_large_is_not_the_engines_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http1, "MAX_WHOLE_BODY_BYTES", 64 * 1024)
    long = replace(EMBED, embedding_size=1_024)
    async with running(long) as engine, running_gateway(config_of([engine])) as here:
        await here.openai.embeddings.create(model=MODEL, input=["a text"])
        with pytest.raises(openai.APIStatusError, match="fewer inputs") as failed:
            await here.openai.embeddings.create(model=MODEL, input=["a text"] * 30)
        assert failed.value.status_code == 502
        assert here.gateway.machine.pools[MODEL].open_replicas == 1

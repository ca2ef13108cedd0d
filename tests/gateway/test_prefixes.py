"""A call goes where its prompt is expected to be cached, and nobody learns from that what others have asked."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from headway.engines.scripted import Script, ScriptedEngine, running
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from tests.running import MODEL, Running, config_for, running_gateway

QUICK = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))
SYSTEM = {"role": "system", "content": "You are a bus. " * 200}

pytestmark = pytest.mark.anyio


async def ask(client: AsyncOpenAI, *turns: str, **more: Any) -> Any:
    said = [{"role": ("user", "assistant")[place % 2], "content": turn} for place, turn in enumerate(turns)]
    messages: Any = [SYSTEM, *said]
    return await client.chat.completions.create(**{"model": MODEL, "messages": messages, "max_tokens": 3, **more})


def calls_of(engine: ScriptedEngine) -> int:
    """Without the probes, whose prompts are short."""
    return sum(one.prompt_tokens > 100 for one in engine.record()["requests"].values())


@asynccontextmanager
async def one_fuller(
    here: Running, engines: list[ScriptedEngine]
) -> AsyncIterator[tuple[ScriptedEngine, ScriptedEngine]]:
    """An engine that has read the prompt and runs a stream, and one that is idle and has read nothing."""
    stream = await ask(here.openai, "Where do you go?", max_tokens=7_000, stream=True)
    await anext(aiter(stream))
    fuller, idle = sorted(engines, key=lambda engine: -engine.record()["running"])
    yield fuller, idle
    assert fuller.record()["running"] == 1
    await stream.close()
    await here.until_empty()


async def test_a_conversation_stays_at_its_engine_though_another_is_emptier() -> None:
    async with (
        running(QUICK) as first,
        running(QUICK) as second,
        running_gateway(config_for([first, second])) as here,
        one_fuller(here, [first, second]) as (fuller, idle),
    ):
        for turn in range(4):
            await ask(here.openai, "Where do you go?", *["To the sea.", "And then?"] * (turn + 1))
        assert [calls_of(engine) for engine in (fuller, idle)] == [5, 0]


async def test_what_another_tenant_has_asked_changes_nothing(tmp_path: Path) -> None:
    """The same prompt under another key goes where it would go if nobody had asked it before, and then stays there."""
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    for name in ("ada", "bob"):
        store.put_key(Key(id=f"key-{name}", hash=key_hash(f"hw-{name}".encode())))
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    price = {"input": 1.0, "output": 10.0}
    async with running(QUICK) as first, running(QUICK) as second:
        config = config_for([first, second], ledger=ledger, price=price)
        async with (
            running_gateway(config, key="hw-ada") as here,
            one_fuller(here, [first, second]) as (fuller, idle),
        ):
            bob = here.openai.with_options(api_key="hw-bob")
            for turn in range(4):
                await ask(bob, "Where do you go?")
                assert [calls_of(engine) for engine in (fuller, idle)] == [1, turn + 1]
            await ask(here.openai, "Where do you go?")
            assert [calls_of(engine) for engine in (fuller, idle)] == [2, 4]
    store.close()

"""Names and speeds through the whole gateway, with the official SDKs. The scripted engine serves only its own name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from headway.config import Config
from headway.engines.scripted import Script, ScriptedEngine, running
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.001, step_s=((1, 0.001),))
ASK: Any = [{"role": "user", "content": "hi"}]
FAST = {"name": "fast", "floor_tps": 20.0}
CURVE = [[1, 500.0], [8, 400.0]]
SECRET = "hw-a-key-for-tests"


def with_names(engine: ScriptedEngine, **more: Any) -> Config:
    tables = config_for([engine], express=[FAST, {"name": "flex"}], curve=CURVE, **more).model_dump()
    aliases = {"aliases": ["claude-mine", "claude-*"], "max_model_len": 4096}
    return Config.model_validate({**tables, "models": [{**tables["models"][0], **aliases}]})


async def tiers_served(here: Running, name: str, **headers: str) -> set[str]:
    """In each dialect, in one piece and streamed."""
    sdk, served = here.openai.chat.completions, set()
    whole: Any = await sdk.create(model=name, messages=ASK, max_tokens=3, extra_headers=headers)
    assert whole.model == MODEL, "an answer names the model that made it"
    served.add(whole.usage.headway["tier_served"])
    stream = await sdk.with_raw_response.create(
        model=name, messages=ASK, max_tokens=3, stream=True, extra_headers=headers
    )
    served.add(stream.headers["headway-tier-served"])
    message: Any = await here.anthropic.messages.create(model=name, messages=ASK, max_tokens=3, extra_headers=headers)
    assert message.model == MODEL
    served.add(message.usage.headway["tier_served"])
    counted = await here.anthropic.messages.count_tokens(model=name, messages=ASK, extra_headers=headers)
    assert counted.input_tokens > 0
    return served


async def test_a_model_answers_to_its_aliases_and_a_tier_to_header_and_suffix() -> None:
    async with running(QUICK) as engine, running_gateway(with_names(engine)) as here:
        for name in (MODEL, "claude-mine", "claude-opus-4-6-20260101"):
            assert await tiers_served(here, name) == {"standard"}
            assert await tiers_served(here, name, **{"Headway-Tier": "fast"}) == {"fast"}
        assert await tiers_served(here, f"{MODEL}-fast") == {"fast"}
        assert await tiers_served(here, "claude-mine-flex") == {"flex"}
        with pytest.raises(openai.BadRequestError, match="not offered at `ultrafast`") as refused:
            await tiers_served(here, f"{MODEL}-ultrafast")
        assert refused.value.param == "model"
        with pytest.raises(anthropic.NotFoundError, match=r"`gpt-5` does not exist\. Available: scripted\."):
            await here.anthropic.messages.create(model="gpt-5", messages=ASK, max_tokens=3)


async def test_models_are_listed_by_every_exact_name_and_found_by_any() -> None:
    async with running(QUICK) as engine, running_gateway(with_names(engine)) as here:
        for sdk in (here.openai, here.anthropic):
            assert [model.id async for model in sdk.models.list()] == [MODEL, "claude-mine"]
            for name in (MODEL, "claude-mine", "claude-opus-4-6", f"{MODEL}-fast"):
                row: Any = await sdk.models.retrieve(name)
                assert (row.id, row.max_model_len, row.root) == (name, 4096, MODEL)
        with pytest.raises(openai.NotFoundError):
            await here.openai.models.retrieve("gpt-5")


async def test_a_key_has_a_default_tier(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(SECRET.encode()), models=[MODEL], default_tier="fast"))
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    async with running(QUICK) as engine, running_gateway(with_names(engine, ledger=ledger), key=SECRET) as here:
        assert await tiers_served(here, "claude-opus-4-6") == {"fast"}
        assert await tiers_served(here, f"{MODEL}-flex") == {"flex"}
        assert await tiers_served(here, MODEL, **{"Headway-Tier": "standard"}) == {"standard"}
    store.close()


async def test_an_alias_does_not_tell_a_key_of_models_that_it_may_not_use(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(SECRET.encode()), models=["other"]))
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    async with running(QUICK) as engine:
        tables = with_names(engine, ledger=ledger).model_dump()
        other = {"name": "other", "replicas_of": MODEL, "aliases": ["gpt-4o"]}
        config = Config.model_validate({**tables, "models": [*tables["models"], other]})
        async with running_gateway(config, key=SECRET) as here:
            assert [model.id async for model in here.openai.models.list()] == ["other", "gpt-4o"]
            for name in ("claude-mine", "claude-opus-4-6"):
                with pytest.raises(openai.PermissionDeniedError) as refused:
                    await here.openai.completions.create(model=name, prompt="hi", max_tokens=1)
                assert f"does not allow the model `{name}`. Allowed: other." in refused.value.message
                assert MODEL not in refused.value.message
                with pytest.raises(openai.NotFoundError):
                    await here.openai.models.retrieve(name)
    store.close()

"""Images through the whole gateway, with the official SDKs: for models that take them, and refused for others."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from headway.config import Config
from headway.engines.scripted import Script, ScriptedEngine, running
from headway.engines.scripted.formats import IMAGE_TOKENS
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from tests.image_files import as_base64, data_url, jpeg, png
from tests.running import MODEL, Running, config_for, running_gateway

pytestmark = pytest.mark.anyio
SCRIPT = Script(model=MODEL, first_token_s=0.002, step_s=((1, 0.001),))
SECRET = "hw-a-key-for-tests"
TEXT_MODEL = "reads-text"
PICTURE = png(64, 48)
URL = data_url(PICTURE)
SOURCE: Any = {"type": "base64", "media_type": "image/png", "data": as_base64(PICTURE)}
CHAT: Any = [
    {"type": "text", "text": "what is this"},
    {"type": "image_url", "image_url": {"url": URL, "detail": "low"}},
]
BLOCKS: Any = [{"type": "text", "text": "what is this"}, {"type": "image", "source": SOURCE}]
PARTS: Any = [
    {"type": "input_text", "text": "what is this"},
    {"type": "input_image", "image_url": URL, "detail": "auto"},
]
TOKENS = 4 + 3 + IMAGE_TOKENS  # what the scripted engine counts: its template, three words, the image


def config_of(engine: ScriptedEngine, **settings: Any) -> Config:
    """A model that takes images, and one on the same engine that does not."""
    plain = config_for([engine], **settings).model_dump()
    [model] = plain["models"]
    model["images"] = True
    text_model = {"name": TEXT_MODEL, "replicas_of": MODEL, "price": model["price"]}
    return Config.model_validate({**plain, "models": [model, text_model]})


@asynccontextmanager
async def seeing(**settings: Any) -> AsyncIterator[Running]:
    async with running(SCRIPT) as engine, running_gateway(config_of(engine, **settings), key=SECRET) as here:
        yield here


def asked_in(content: Any) -> Any:
    return [{"role": "user", "content": content}]


async def test_every_dialect_takes_an_image_streamed_and_whole() -> None:
    async with seeing() as here:
        chat = await here.openai.chat.completions.create(model=MODEL, messages=asked_in(CHAT), max_tokens=5)
        assert chat.usage is not None
        assert chat.usage.prompt_tokens == TOKENS
        options: Any = {"include_usage": True}
        stream = await here.openai.chat.completions.create(
            model=MODEL, messages=asked_in(CHAT), max_tokens=5, stream=True, stream_options=options
        )
        usages = [chunk.usage async for chunk in stream if chunk.usage]
        assert usages[-1].prompt_tokens == TOKENS
        message = await here.anthropic.messages.create(model=MODEL, messages=asked_in(BLOCKS), max_tokens=5)
        assert message.usage.input_tokens == TOKENS
        async with here.anthropic.messages.stream(model=MODEL, messages=asked_in(BLOCKS), max_tokens=5) as events:
            assert (await events.get_final_message()).usage.input_tokens == TOKENS
        counted = await here.anthropic.messages.count_tokens(model=MODEL, messages=asked_in(BLOCKS))
        assert counted.input_tokens == TOKENS
        response = await here.openai.responses.create(model=MODEL, input=asked_in(PARTS), max_output_tokens=5)
        assert response.usage is not None
        assert response.usage.input_tokens == TOKENS
        events_of_response = await here.openai.responses.create(
            model=MODEL, input=asked_in(PARTS), max_output_tokens=5, stream=True
        )
        final: Any = [event async for event in events_of_response][-1]
        assert final.response.usage.input_tokens == TOKENS


async def test_results_of_tools_may_be_images() -> None:
    result: Any = [{"type": "tool_result", "tool_use_id": "1", "content": BLOCKS}]
    called: Any = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "1", "output": PARTS}
    async with seeing() as here:
        message = await here.anthropic.messages.create(model=MODEL, messages=asked_in(result), max_tokens=5)
        assert message.usage.input_tokens > IMAGE_TOKENS
        response = await here.openai.responses.create(model=MODEL, input=[called, output])
        assert response.usage is not None
        assert response.usage.input_tokens > IMAGE_TOKENS


async def test_other_models_refuse_images_and_name_those_that_take_them() -> None:
    async with seeing() as here:
        create, say = here.openai.chat.completions.create, f"text only: describe the image in text. .*images: {MODEL}"
        with pytest.raises(openai.BadRequestError, match=say) as refused:
            await create(model=TEXT_MODEL, messages=asked_in(CHAT))
        assert refused.value.param == "model"
        with pytest.raises(anthropic.BadRequestError, match=say):
            await here.anthropic.messages.create(model=TEXT_MODEL, messages=asked_in(BLOCKS), max_tokens=5)
        with pytest.raises(anthropic.BadRequestError, match=say):
            await here.anthropic.messages.count_tokens(model=TEXT_MODEL, messages=asked_in(BLOCKS))
        with pytest.raises(openai.BadRequestError, match=say):
            await here.openai.responses.create(model=TEXT_MODEL, input=asked_in(PARTS))
        listed: Any = {model.id: model.to_dict() async for model in here.openai.models.list()}
        assert listed[MODEL]["images"] is True
        assert "images" not in listed[TEXT_MODEL]


async def test_a_bad_image_is_refused_before_the_engine() -> None:
    bomb: Any = [{"type": "image_url", "image_url": {"url": data_url(jpeg(60_000, 60_000), "jpeg")}}]
    remote: Any = [{"type": "image_url", "image_url": {"url": "http://127.0.0.1/x.png"}}]
    async with seeing() as here:
        for content, said in ((bomb, "60,000 by 60,000 pixels"), (remote, "does not fetch URLs")):
            with pytest.raises(openai.BadRequestError, match=said):
                await here.openai.chat.completions.create(model=MODEL, messages=asked_in(content))


async def test_a_budget_has_room_for_the_tokens_of_an_image_and_not_for_its_bytes(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(SECRET.encode()), budget_day=20_000))
    store.close()
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    large = data_url(png(64, 48, data=bytes(300_000)))  # more bytes than the budget has micro-units, at one for a token
    content: Any = [{"type": "image_url", "image_url": {"url": large}}]
    async with seeing(price={"input": 1.0, "output": 1.0}, ledger=ledger) as here:
        create = here.openai.chat.completions.create
        answer = await create(model=MODEL, messages=asked_in(content), max_tokens=5)
        assert answer.usage is not None
        assert answer.usage.prompt_tokens == 4 + IMAGE_TOKENS
        with pytest.raises(openai.APIStatusError, match="budget"):  # two images may have 32,768 tokens
            await create(model=MODEL, messages=asked_in(content * 2), max_tokens=5)


async def test_a_stored_response_with_an_image_can_be_continued(tmp_path: Path) -> None:
    store = SQLiteStore(tmp_path / "books.db")
    store.migrate()
    store.put_key(Key(id="key-test", hash=key_hash(SECRET.encode())))
    store.close()
    ledger = {"store": f"sqlite:///{tmp_path}/books.db", "spool": str(tmp_path / "spool")}
    async with seeing(price={"input": 1.0, "output": 1.0}, ledger=ledger) as here:
        first = await here.openai.responses.create(model=MODEL, input=asked_in(PARTS), max_output_tokens=5)
        then = await here.openai.responses.create(model=MODEL, input="and now", previous_response_id=first.id)
        assert then.usage is not None
        assert then.usage.input_tokens == TOKENS + 5 + 2

"""Fields of requests through the whole gateway: what is told of those that are ignored, and how clients go on."""

from __future__ import annotations

from typing import Any

import anthropic
import openai
import pytest

from headway.engines.scripted import Script, running
from tests.running import MODEL, config_for, running_gateway

pytestmark = pytest.mark.anyio
QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
ASK: Any = [{"role": "user", "content": "two words"}]


async def test_an_answer_names_the_fields_that_were_ignored() -> None:
    hints: dict[str, Any] = {"verbosity": "low", "store": True, "my_own": {"x": 1}}
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        chat = here.openai.chat.completions.with_raw_response
        whole = await chat.create(model=MODEL, messages=ASK, max_tokens=5, extra_body=hints)
        assert whole.headers["headway-ignored"] == "verbosity, store, my_own"
        stream = await chat.create(model=MODEL, messages=ASK, max_tokens=5, stream=True, extra_body=hints)
        assert stream.headers["headway-ignored"] == "verbosity, store, my_own"
        assert [chunk async for chunk in stream.parse()]
        plain = await chat.create(model=MODEL, messages=ASK, max_tokens=5)
        assert "headway-ignored" not in plain.headers
        messages = here.anthropic.beta.messages.with_raw_response
        edits: Any = {"edits": [{"type": "clear_tool_uses_20250919"}]}
        message = await messages.create(model=MODEL, messages=ASK, max_tokens=5, context_management=edits)
        assert message.headers["headway-ignored"] == "context_management"


async def test_unknown_fields_can_be_refused() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine], unknown_fields="refuse")) as here:
        chat = here.openai.chat.completions
        with pytest.raises(openai.BadRequestError, match="Unknown field `my_own`"):
            await chat.create(model=MODEL, messages=ASK, max_tokens=5, extra_body={"my_own": 1})
        await chat.create(model=MODEL, messages=ASK, max_tokens=5, store=True)


async def test_anthropics_tool_runner_goes_on_without_a_thread() -> None:
    @anthropic.beta_async_tool
    async def look(place: str) -> str:
        """Look at a place."""
        return place

    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:
        runner = here.anthropic.beta.messages.tool_runner(model=MODEL, messages=ASK, max_tokens=5, tools=[look])
        final = await runner.until_done()
        assert final.usage.output_tokens == 5


async def test_a_model_takes_the_template_arguments_that_its_owner_allows() -> None:
    async with running(QUICK) as engine, running_gateway(config_for([engine])) as here:

        async def ask(**arguments: object) -> None:
            more = {"chat_template_kwargs": arguments}
            await here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=5, extra_body=more)

        await ask(enable_thinking=False)
        with pytest.raises(openai.BadRequestError, match="Allowed: enable_thinking"):
            await ask(custom="x")
        with pytest.raises(openai.BadRequestError, match="chat_template_kwargs"):
            await ask(enable_thinking=[1])

"""The rest of a chat answer with reasoning or calls of tools, parsed by a real vLLM engine that did not give the beginning.

The answers are written here, because a small model calls no tool by itself. The parsers, their endpoint and the ids of
the tokens are vLLM's. Each answer is cut after each of its tokens.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from headway.api import anthropic, openai
from headway.engines.vllm import DERENDER, RENDER, VLLMEngine
from headway.engines.vllm_parsing import ParsedAnswer
from headway.http1 import ConnectionPool
from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from headway.wire import ChatSoFar
from runs.measure.engines import TOOL_PARSER
from tests.e2e.conftest import SEATS

pytestmark = [pytest.mark.engine, pytest.mark.anyio]
END = "<|im_end|>"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in Paris and in Rome?"}],
    "stream": True,
    "max_tokens": 100,
}
CALLS = """I shall look … à Paris.
<tool_call>
{"name": "weather", "arguments": {"city": "Paris", "days": 3}}
</tool_call>
<tool_call>
{"name": "weather", "arguments": {"city": "Rome ☔"}}
</tool_call>"""
STORY = "No tool is needed: it rains ☔ in both < cities >."
THOUGHT = "<think>Two cities … à voir, 1 < 2.</think>It rains ☔."


class Completed:
    """An engine's answer: an event for each of these tokens, of which some arrive together."""

    status, content_type = 200, b"text/event-stream"

    def __init__(self, ids: list[int], stop_id: int | None = None) -> None:
        self.ids, self.stop_id = ids, stop_id

    async def read(self) -> bytes:
        return b""

    async def pipe(self, sink: Callable[[bytes], None]) -> None:
        ends: list[tuple[int, str | None]] = [(one, None) for one in self.ids]
        ends += [] if self.stop_id is None else [(self.stop_id, "stop")]
        for number, (one, finish_reason) in enumerate(ends):
            choice = {"token_ids": [one], "finish_reason": finish_reason}
            sink(b"data: " + msgspec.json.encode({"choices": [choice], "usage": {}}) + b"\n\n")
            if number % 3 == 0:
                await asyncio.sleep(0.001)

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    def close(self) -> None: ...


@dataclass
class Message:
    """A chat answer as an SDK puts it together."""

    content: str = ""
    reasoning: str = ""
    finish_reason: str = ""
    calls: list[dict[str, str]] = field(default_factory=list)
    pieces: list[list[int]] = field(default_factory=list)  # the ids of each event

    def add(self, data: bytes) -> None:
        [choice] = msgspec.json.decode(data[6:])["choices"]
        delta = choice["delta"]
        self.content += delta.get("content", "")
        self.reasoning += delta.get("reasoning", "")
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(self.calls):
                self.calls.append({"name": "", "arguments": ""})
            for name, text in call["function"].items():
                self.calls[call["index"]][name] += text
        self.finish_reason = choice["finish_reason"] or self.finish_reason
        self.pieces.append(choice["token_ids"])

    @property
    def told(self) -> tuple[str, str, str, list[tuple[str, Any]]]:
        calls = [(call["name"], msgspec.json.decode(call["arguments"])) for call in self.calls]
        return self.content, self.reasoning, self.finish_reason, calls


class Engine:
    """A real engine, asked to parse answers to one request."""

    def __init__(self, url: str, asked: dict[str, Any]) -> None:
        self.pool = ConnectionPool(url)
        self.asked = msgspec.json.encode(asked)
        self.prompt_ids = b""

    async def ask(self, path: str, body: bytes) -> bytes:
        status, page = await self.pool.exchange(b"POST", path, body)
        assert status == 200, page
        return page

    async def parse(self, body: bytes) -> bytes:
        return await self.ask(DERENDER, body)

    async def ids_of(self, text: str) -> list[int]:
        body = {"model": MODEL, "prompt": text, "add_special_tokens": False}
        ids: list[int] = msgspec.json.decode(await self.ask("/tokenize", msgspec.json.encode(body)))["tokens"]
        return ids

    async def cut_everywhere(self, text: str) -> list[Message]:
        """The answer as it is told if the engine parses all of it, and if it begins after each of its tokens."""
        ids, [stop_id] = await self.ids_of(text), await self.ids_of(END)
        prompt = msgspec.json.decode(await self.ask(RENDER, self.asked))["token_ids"]
        self.prompt_ids = ",".join(map(str, prompt)).encode()
        messages = []
        for cut in range(len(ids) + 1):
            message = Message()
            await self.go_on(Completed(ids[:cut]), message)
            await self.go_on(Completed(ids[cut:], stop_id), message)
            messages.append(message)
        return messages

    async def go_on(self, answer: Completed, message: Message) -> None:
        before = tuple(",".join(map(str, ids)).encode() for ids in message.pieces)
        calls = tuple(f"call-{number}" for number in range(len(message.calls)))
        so_far = ChatSoFar(self.asked, self.prompt_ids, before, calls)
        await ParsedAnswer(answer, so_far, self.parse).pipe(message.add)


@asynccontextmanager
async def asking(url: str, asked: dict[str, Any]) -> AsyncIterator[Engine]:
    engine = Engine(url, asked)
    try:
        yield engine
    finally:
        engine.pool.close()


def prepared(engine: VLLMEngine, **fields: Any) -> tuple[bool, bool]:
    """Whether the ids of a stream are kept, and whether a whole answer is collected from one."""
    streamed = openai.read_chat(msgspec.json.encode(ASKED | fields), "id")
    whole = openai.read_chat(msgspec.json.encode(ASKED | fields | {"stream": False}), "id")
    return engine.prepare(streamed).returns_ids, engine.prepare(whole).collects


async def test_calls_of_tools_go_on_wherever_they_are_cut(engines: list[EngineProcess]) -> None:
    async with asking(engines[0].url, ASKED | {"tools": [TOOL]}) as engine:
        for text in (CALLS, STORY):
            whole, *others = await engine.cut_everywhere(text)
            assert [one.told for one in others] == [whole.told] * len(others)
            if text == STORY:
                assert whole.told == (STORY, "", "stop", [])
            else:
                content, _, finish_reason, calls = whole.told
                assert (content.strip(), finish_reason) == (CALLS.splitlines()[0], "tool_calls")
                assert calls == [("weather", {"city": "Paris", "days": 3}), ("weather", {"city": "Rome ☔"})]


async def test_an_engine_that_parses_only_tools(engines: list[EngineProcess]) -> None:
    engine = VLLMEngine("r0", engines[0].url, MODEL)
    assert await engine.produces_a_token()
    assert prepared(engine) == (True, True)
    assert prepared(engine, tools=[TOOL]) == (True, False)
    assert prepared(engine, stop="x") == (True, True)
    engine.close()


@pytest.fixture(scope="module")
def reasoning_engine() -> Iterator[EngineProcess]:
    """It also compiles a grammar for every tool."""
    python = ensure_cpu_engine(print)
    model = str(ensure_smollm2(python, print))
    parsers = ("--reasoning-parser", "olmo3", *TOOL_PARSER, "--tool-strict-level", "function")
    engine = EngineProcess(
        LocalEngine(cpu_vllm(python), model, MODEL, free_port(), SEATS, on_cpu=True, core=1, extra_args=parsers)
    )
    try:
        engine.start()
        engine.wait_ready(300)
        yield engine
    finally:
        engine.stop()


async def test_reasoning_goes_on_wherever_it_is_cut(reasoning_engine: EngineProcess) -> None:
    async with asking(reasoning_engine.url, ASKED) as engine:
        whole, *others = await engine.cut_everywhere(THOUGHT)
    assert [one.told for one in others] == [whole.told] * len(others)
    content, reasoning, finish_reason, _ = whole.told
    assert (reasoning.strip(), content.strip(), finish_reason) == (
        "Two cities … à voir, 1 < 2.",
        "It rains ☔.",
        "stop",
    )


async def test_an_engine_with_a_reasoning_parser_is_asked_for_whole_chat_answers(
    reasoning_engine: EngineProcess,
) -> None:
    engine = VLLMEngine("r0", reasoning_engine.url, MODEL)
    assert await engine.produces_a_token()
    assert prepared(engine) == (True, False)
    assert prepared(engine, stop="x") == (False, False)
    assert prepared(engine, tools=[TOOL]) == (False, False), "a grammar decides on the calls"
    completion = msgspec.json.encode({"model": MODEL, "prompt": "hi"})
    assert engine.prepare(openai.read_completion(completion, "id")).collects
    message = msgspec.json.encode({"model": MODEL, "max_tokens": 9, "messages": ASKED["messages"]})
    assert not engine.prepare(anthropic.read_messages(message, "id")).collects
    engine.close()

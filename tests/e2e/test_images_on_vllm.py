"""Images on real vLLM: the same picture in every dialect, through both official SDKs, to a tiny model with random weights."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from headway.local.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import EngineProcess, LocalEngine, cpu_vllm, free_port
from tests.e2e.conftest import SEATS, GatewayProcess, start_gateway_of
from tests.image_files import as_base64, data_url, jpeg, png

pytestmark = pytest.mark.engine
MODEL = "tiny-vision"
IMAGE_TOKENS = 19  # as make_tiny_vision.py makes the model
PICTURE = png(320, 200)
URL = data_url(PICTURE)
TEXT = "What is this?"
WORDS: Any = {"chat": {"type": "text", "text": TEXT}, "responses": {"type": "input_text", "text": TEXT}}
SOURCE: Any = {"type": "base64", "media_type": "image/png", "data": as_base64(PICTURE)}
PART: Any = {
    "chat": {"type": "image_url", "image_url": {"url": URL, "detail": "high"}},
    "messages": {"type": "image", "source": SOURCE},
    "responses": {"type": "input_image", "image_url": URL, "detail": "auto"},
}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GatewayProcess]:
    """A gateway in front of an engine that serves a vision model."""
    folder = tmp_path_factory.mktemp("vision")
    python = ensure_cpu_engine(print)
    script = Path(__file__).with_name("make_tiny_vision.py")
    made = [python, script, ensure_smollm2(python, print), folder / "model"]
    subprocess.run(made, check=True, capture_output=True)
    command = cpu_vllm(python)
    limits = ("--limit-mm-per-prompt", '{"image": 16}')
    engine = LocalEngine(
        command, str(folder / "model"), MODEL, free_port(), SEATS, on_cpu=True, core=0, extra_args=limits
    )
    with EngineProcess(engine) as process:
        process.wait_ready(300)
        replica = f'[[models.replicas]]\nurl = "{process.url}"\nseats = {SEATS}\n'
        model = f'[[models]]\nname = "{MODEL}"\nimages = true\nimage_tokens = {IMAGE_TOKENS}\n{replica}'
        gateway = start_gateway_of(model, 1, folder)
        yield gateway
        gateway.stop()


def content(dialect: str, *, with_image: bool) -> Any:
    words = WORDS.get(dialect, WORDS["chat"])
    return [{"role": "user", "content": [words, PART[dialect]] if with_image else [words]}]


def chat_tokens(seeing: GatewayProcess, with_image: bool, streamed: bool) -> int:
    asked: Any = {"model": MODEL, "messages": content("chat", with_image=with_image), "max_tokens": 4}
    if not streamed:
        return int(seeing.openai.chat.completions.create(**asked).usage.prompt_tokens)
    options: Any = {"include_usage": True}
    chunks: list[Any] = list(seeing.openai.chat.completions.create(**asked, stream=True, stream_options=options))
    return int(chunks[-1].usage.prompt_tokens)


def messages_tokens(seeing: GatewayProcess, with_image: bool, streamed: bool) -> int:
    asked: Any = {"model": MODEL, "messages": content("messages", with_image=with_image), "max_tokens": 4}
    if streamed:
        with seeing.anthropic.messages.stream(**asked) as events:
            usage = events.get_final_message().usage
    else:
        usage = seeing.anthropic.messages.create(**asked).usage
    return usage.input_tokens + (usage.cache_read_input_tokens or 0)


def responses_tokens(seeing: GatewayProcess, with_image: bool, streamed: bool) -> int:
    asked: Any = {"model": MODEL, "input": content("responses", with_image=with_image), "max_output_tokens": 4}
    if not streamed:
        return int(seeing.openai.responses.create(**asked).usage.input_tokens)
    events: list[Any] = list(seeing.openai.responses.create(**asked, stream=True))
    return int(events[-1].response.usage.input_tokens)


TOKENS = {"chat": chat_tokens, "messages": messages_tokens, "responses": responses_tokens}


@pytest.mark.parametrize("streamed", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("dialect", TOKENS)
def test_an_image_is_seen(seeing: GatewayProcess, dialect: str, streamed: bool) -> None:
    with_image, alone = (TOKENS[dialect](seeing, is_there, streamed) for is_there in (True, False))
    assert IMAGE_TOKENS <= with_image - alone <= IMAGE_TOKENS + 2  # and a line break


def test_an_image_counts_where_tokens_are_counted(seeing: GatewayProcess) -> None:
    def counted(*, with_image: bool) -> tuple[int, int]:
        asked = content("messages", with_image=with_image)
        message = seeing.anthropic.messages.count_tokens(model=MODEL, messages=asked)
        response = seeing.openai.responses.input_tokens.count(
            model=MODEL, input=content("responses", with_image=with_image)
        )
        return message.input_tokens, response.input_tokens

    for with_image, alone in zip(counted(with_image=True), counted(with_image=False), strict=True):
        assert with_image - alone >= IMAGE_TOKENS


def test_results_of_tools_may_be_images(seeing: GatewayProcess) -> None:
    use: Any = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
    result: Any = {"type": "tool_result", "tool_use_id": "1", "content": [PART["messages"]]}
    messages: Any = [*content("messages", with_image=False), {"role": "assistant", "content": [use]}]
    messages.append({"role": "user", "content": [result]})
    message = seeing.anthropic.messages.create(model=MODEL, messages=messages, max_tokens=4)
    assert message.usage.input_tokens > IMAGE_TOKENS
    called: Any = {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"}
    output: Any = {"type": "function_call_output", "call_id": "1", "output": [PART["responses"]]}
    items = [*content("responses", with_image=False), called, output]
    response = seeing.openai.responses.create(model=MODEL, input=items, max_output_tokens=4)
    assert response.usage is not None
    assert response.usage.input_tokens > IMAGE_TOKENS


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://127.0.0.1:9/x.png", "does not fetch"),
        (data_url(jpeg(60_000, 60_000), "jpeg"), "60,000 by 60,000"),
        ("data:image/png;base64,AAAA", "not an image"),
    ],
    ids=["remote", "bomb", "no-image"],
)
def test_a_bad_image_is_refused_before_the_engine(seeing: GatewayProcess, url: str, said: str) -> None:
    asked: Any = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]
    with pytest.raises(openai.BadRequestError, match=said):
        seeing.openai.chat.completions.create(model=MODEL, messages=asked)

"""The gateway on real vLLM with a real model, called with the unmodified official SDKs.

The tests run in file order: those at the end stop and kill engines.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest
from anthropic.types import TextBlock

from headway.dispatch.record import replay
from headway.engines.vllm import read_kv_tokens
from headway.local.engine_env import MODEL_NAME as MODEL
from headway.local.engine_process import EngineProcess
from tests.e2e.conftest import STALL_S, GatewayProcess, get, running_on, start_gateway, wait_until

pytestmark = pytest.mark.engine
ASK: Any = [{"role": "user", "content": "Count from one to five."}]
ENDLESS: dict[str, Any] = {"ignore_eos": True}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
GREEDY = {"temperature": 0}


# --- the OpenAI SDK ---


def test_openai_plain(gateway: GatewayProcess) -> None:
    answer = gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=24, temperature=0)
    assert answer.choices[0].message.content
    assert answer.usage is not None
    assert 0 < answer.usage.completion_tokens <= 24
    assert answer.model == MODEL


def test_openai_streaming(gateway: GatewayProcess) -> None:
    stream = gateway.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=24, temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip()
    [usage] = [chunk.usage for chunk in chunks if chunk.usage]
    assert 0 < usage.completion_tokens <= 24
    assert len([chunk for chunk in chunks if chunk.choices]) > 3, "tokens did not come one by one"


def test_openai_stream_without_usage_has_none(gateway: GatewayProcess) -> None:
    stream = gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, stream=True)
    for chunk in stream:
        assert chunk.usage is None
        assert chunk.choices


def test_openai_system_prompt_reaches_the_model(gateway: GatewayProcess) -> None:
    def prompt_tokens(messages: Any) -> int:
        answer = gateway.openai.chat.completions.create(model=MODEL, messages=messages, max_tokens=1)
        assert answer.usage is not None
        return answer.usage.prompt_tokens

    short = prompt_tokens([{"role": "system", "content": "Be brief."}, *ASK])
    long = prompt_tokens([{"role": "system", "content": "Be brief. " * 20}, *ASK])
    assert long > short + 20


def test_openai_stop_sequence(gateway: GatewayProcess) -> None:
    prompt = "1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13"
    free = gateway.openai.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0)
    stop = free.choices[0].text.strip()[3:5] or free.choices[0].text[:1]
    stopped = gateway.openai.completions.create(model=MODEL, prompt=prompt, max_tokens=16, temperature=0, stop=[stop])
    assert stopped.choices[0].finish_reason == "stop"
    assert stop not in stopped.choices[0].text
    assert len(stopped.choices[0].text) < len(free.choices[0].text)


def test_openai_completions_stream(gateway: GatewayProcess) -> None:
    stream = gateway.openai.completions.create(
        model=MODEL, prompt="Once upon a time", max_tokens=12, temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in stream).strip()


def test_openai_several_choices(gateway: GatewayProcess) -> None:
    answer = gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=8, n=3, temperature=1)
    assert [choice.index for choice in answer.choices] == [0, 1, 2]


def test_openai_logprobs(gateway: GatewayProcess) -> None:
    answer = gateway.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=4, logprobs=True, top_logprobs=3, extra_body=ENDLESS
    )
    assert answer.choices[0].logprobs is not None
    assert len(answer.choices[0].logprobs.content or []) == 4


def test_openai_errors(gateway: GatewayProcess) -> None:
    with pytest.raises(openai.NotFoundError, match=MODEL):
        gateway.openai.chat.completions.create(model="gpt-x", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="priority") as refused:
        gateway.openai.chat.completions.create(model=MODEL, messages=ASK, extra_body={"priority": -1})
    assert refused.value.param == "priority"
    with pytest.raises(openai.BadRequestError, match="max_model_len"):  # the engine's message
        gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20_000)
    with pytest.raises(openai.BadRequestError, match="not offered at `ultrafast`"):
        gateway.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=5, extra_body={"service_tier": "ultrafast"}
        )
    with pytest.raises(openai.BadRequestError):
        gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=20_000, stream=True)


# --- the Anthropic SDK ---


def test_anthropic_plain(gateway: GatewayProcess) -> None:
    answer = gateway.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=24, extra_body=GREEDY)
    assert isinstance(answer.content[0], TextBlock)
    assert answer.content[0].text
    assert 0 < answer.usage.output_tokens <= 24
    assert answer.stop_reason in ("end_turn", "max_tokens")


def test_anthropic_streaming(gateway: GatewayProcess) -> None:
    with gateway.anthropic.messages.stream(model=MODEL, messages=ASK, max_tokens=24, extra_body=GREEDY) as stream:
        pieces = list(stream.text_stream)
        final = stream.get_final_message()
    assert len(pieces) > 3
    assert 0 < final.usage.output_tokens <= 24
    assert isinstance(final.content[0], TextBlock)
    assert final.content[0].text == "".join(pieces)


def test_anthropic_system_prompt_and_count_tokens(gateway: GatewayProcess) -> None:
    counts = [
        gateway.anthropic.messages.count_tokens(model=MODEL, messages=ASK, system=system).input_tokens
        for system in ("Be brief.", "Be brief. " * 20)
    ]
    assert counts[1] > counts[0] + 20
    answer = gateway.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=1, system="Be brief.")
    assert answer.usage.input_tokens == counts[0]


def test_anthropic_stop_sequence(gateway: GatewayProcess) -> None:
    free = gateway.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=24, extra_body=GREEDY)
    assert isinstance(free.content[0], TextBlock)
    stop = free.content[0].text[5:8]
    stopped = gateway.anthropic.messages.create(
        model=MODEL, messages=ASK, max_tokens=24, stop_sequences=[stop], extra_body=GREEDY
    )
    assert stopped.stop_reason == "stop_sequence"


def test_anthropic_errors(gateway: GatewayProcess) -> None:
    with pytest.raises(anthropic.NotFoundError) as missing:
        gateway.anthropic.messages.create(model="claude-x", messages=ASK, max_tokens=4)
    assert "not_found_error" in str(missing.value.body)
    with pytest.raises(anthropic.BadRequestError, match="speed"):
        gateway.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=5, extra_body={"speed": "warp"})
    with pytest.raises(anthropic.BadRequestError) as said:  # the engine's message in this dialect's form
        gateway.anthropic.messages.create(model=MODEL, messages=ASK, max_tokens=20_000)
    assert "invalid_request_error" in str(said.value.body)


def test_both_sdks_list_the_models(gateway: GatewayProcess) -> None:
    assert [model.id for model in gateway.openai.models.list()] == [MODEL]
    assert [model.id for model in gateway.anthropic.models.list()] == [MODEL]


# --- fast mode ---


def test_fast_answers_carry_their_proof(gateway: GatewayProcess) -> None:
    whole = gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=24, service_tier="fast")
    assert whole.service_tier == "fast"
    stream = gateway.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=24, service_tier="fast", stream=True, extra_body=ENDLESS,
        stream_options={"include_usage": True},
    )  # fmt: skip
    *_, last = stream
    proof = last.usage.headway  # type: ignore[union-attr]
    assert (proof["tier_served"], proof["kept"]) == ("fast", True)
    assert 1 < proof["tokens_per_second"] < 1000


def test_a_fast_message_without_streaming_is_what_the_engine_returns(gateway: GatewayProcess) -> None:
    """The gateway streams it from the engine to time it, and collects the stream into one message."""
    ask: Any = {"model": MODEL, "messages": ASK, "max_tokens": 24, "extra_body": GREEDY, "system": "Count slowly."}
    fast = gateway.anthropic.messages.create(speed="fast", **ask)
    standard = gateway.anthropic.messages.create(**ask)
    assert fast.usage.speed == "fast"
    assert fast.content == standard.content
    assert (fast.stop_reason, fast.stop_sequence) == (standard.stop_reason, standard.stop_sequence)
    assert fast.usage.output_tokens == standard.usage.output_tokens
    assert fast.usage.input_tokens == standard.usage.input_tokens
    proof = fast.usage.headway
    assert proof["tier_served"] == "fast"
    assert proof["tokens_per_second"] > 0
    assert set(fast.model_dump()) == set(standard.model_dump())


def test_the_engine_says_how_many_tokens_its_memory_holds(engines: list[EngineProcess]) -> None:
    page = get(engines[0].url + "/metrics")
    [log] = re.findall(r"KV cache size: ([\d,]+) tokens", engines[0].log_path.read_text())
    assert read_kv_tokens(page) == int(log.replace(",", ""))


def test_a_client_that_leaves_stops_the_engines_work(gateway: GatewayProcess, engines: list[EngineProcess]) -> None:
    stream = gateway.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=4000, stream=True, extra_body=ENDLESS
    )
    for _, _chunk in zip(range(5), stream, strict=False):
        pass
    assert sum(running_on(engine) for engine in engines) == 1
    stream.close()
    wait_until("the engine has stopped", lambda: sum(running_on(engine) for engine in engines) == 0, 10)
    wait_until("the seat is free", lambda: gateway.aboard() == 0, 10)


def test_a_client_that_leaves_before_its_whole_answer(gateway: GatewayProcess, engines: list[EngineProcess]) -> None:
    with pytest.raises(openai.APITimeoutError):
        gateway.openai.chat.completions.create(
            model=MODEL, messages=ASK, max_tokens=4000, extra_body=ENDLESS, timeout=2.0
        )
    wait_until("the engine has stopped", lambda: sum(running_on(engine) for engine in engines) == 0, 10)
    wait_until("the seat is free", lambda: gateway.aboard() == 0, 10)


def test_sigterm_lets_the_stream_end(engines: list[EngineProcess], tmp_path: Path) -> None:
    ours = start_gateway(engines, tmp_path)
    stream = ours.openai.chat.completions.create(
        model=MODEL, messages=ASK, max_tokens=60, stream=True, extra_body=ENDLESS
    )
    chunks = [next(iter(stream))]
    ours.process.send_signal(signal.SIGTERM)
    chunks += list(stream)
    assert chunks[-1].choices[0].finish_reason == "length"
    assert ours.process.wait(20) == 0
    ours.stop()
    result = replay(ours.record)
    assert result.first_difference is None
    assert result.events > 0


def test_a_stalled_engine_is_detected_and_its_call_retried(
    gateway: GatewayProcess, engines: list[EngineProcess]
) -> None:
    """The API server still answers /health, but the engine's core process is stopped."""
    answers: list[Any] = []

    def call(name: str) -> None:
        ask: Any = [{"role": "user", "content": f"{name} stood still. Count to five."}]
        answers.append(
            gateway.openai.chat.completions.create(model=MODEL, messages=ask, max_tokens=60, extra_body=ENDLESS)
        )

    callers = [threading.Thread(target=call, args=(name,)) for name in ("Ann", "Ben")]
    for caller in callers:
        caller.start()
    # Stop an engine that has a call. Which one depends on whether light seats are still reserved for fast calls.
    wait_until("a call is aboard", lambda: any(running_on(engine) for engine in engines))
    stopped = next(engine for engine in engines if running_on(engine)).engine_core_pid()
    os.kill(stopped, signal.SIGSTOP)
    try:
        wait_until("the engine is taken out", lambda: gateway.open_replicas() == 1, STALL_S + 40)
        for caller in callers:
            caller.join(120)
        assert len(answers) == 2
    finally:
        os.kill(stopped, signal.SIGCONT)
    wait_until("the engine is open again", lambda: gateway.open_replicas() == 2, 60)


def test_an_engine_killed_in_the_middle(gateway: GatewayProcess, engines: list[EngineProcess]) -> None:
    """kill -9 during four streams: chats on the dead engine go on at the other one, which serves the next calls too. A
    message can only be lost."""
    pieces = [0, 0, 0, 0]
    chats: dict[int, tuple[str, int, int]] = {}  # how each ended, its output tokens, and how often it moved
    messages: list[str] = []

    def stream_chat(number: int) -> None:
        # Prompts with a common prefix would go to the same engine while loads are nearly equal.
        ask: Any = [{"role": "user", "content": f"{number} is where you begin to count."}]
        stream = gateway.openai.chat.completions.create(
            model=MODEL,
            messages=ask,
            max_tokens=150,
            stream=True,
            stream_options={"include_usage": True},
            stop=["never said by anybody"] if number == 2 else None,  # so that text is held back at the border
            extra_body=ENDLESS | ({"tools": [TOOL]} if number == 3 else {}),  # the other engine parses the rest
        )
        finish_reason = ""
        for chunk in stream:
            pieces[number] += 1
            for choice in chunk.choices:
                finish_reason = choice.finish_reason or finish_reason
            if chunk.usage is not None:
                moves = (chunk.usage.model_extra or {})["headway"].get("moves", 0)
                chats[number] = (finish_reason, chunk.usage.completion_tokens, moves)

    def stream_messages(number: int) -> None:
        poem: Any = [{"role": "user", "content": "Write a very long poem about every city you know."}]
        try:
            with gateway.anthropic.messages.stream(
                model=MODEL, messages=poem, max_tokens=150, extra_body=GREEDY
            ) as stream:
                for _ in stream.text_stream:
                    pieces[number] += 1
                messages.append(str(stream.get_final_message().stop_reason))
        except anthropic.APIError:
            messages.append("lost")

    targets = (stream_chat, stream_messages, stream_chat, stream_chat)
    callers = [threading.Thread(target=target, args=(number,)) for number, target in enumerate(targets)]
    for caller in callers:
        caller.start()
    wait_until("tokens flow in all four", lambda: min(pieces) >= 3)
    assert [running_on(engine) for engine in engines] == [2, 2]
    engines[1].kill()
    for caller in callers:
        caller.join(300)
    assert {number: end[:2] for number, end in chats.items()} == dict.fromkeys((0, 2, 3), ("length", 150))
    moved = sum(moves for _, _, moves in chats.values())
    assert moved == (1 if messages == ["lost"] else 2), (chats, messages)
    for _ in range(4):
        assert gateway.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=4).choices
    wait_until("the dead engine is out", lambda: gateway.open_replicas() == 1)


def test_the_gateway_is_clean_after_all_tests(gateway: GatewayProcess) -> None:
    """After all tests above: no call aboard, no traceback in the log, and the replay gives the same actions."""
    assert gateway.aboard() == 0
    assert "Traceback" not in gateway.log.read_text()
    assert gateway.stop() == 0
    result = replay(gateway.record)
    assert result.first_difference is None
    assert result.events > 50
    command = [sys.executable, "-m", "headway", "replay", str(gateway.record)]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "identical" in shown.stdout

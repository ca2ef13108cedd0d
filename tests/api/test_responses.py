"""The Responses dialect: what clients send, what the engine gets, and what its meter makes of an engine's answers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api import responses
from headway.api.responses_meter import ResponsesForm, ResponsesMeter
from headway.engines.scripted.answers import ChoicePlan, Piece
from headway.engines.scripted.formats import ScriptedAnswer
from headway.engines.scripted.responses import ResponsesFormat
from headway.errors import EngineAnswered, EngineFailed, EngineLost, InvalidRequest
from headway.price import Bill
from headway.wire import Grant, Receipt, Request, Usage

CREATE = responses.ROUTES[0]
GRANT = Grant("fast", "fast")
FUNCTION = {"type": "function", "name": "shell", "parameters": {"type": "object", "properties": {}}, "strict": False}
# As the clients send them, shortened.
CLIENTS: dict[str, dict[str, Any]] = {
    "codex": {  # 0.169 in a tool loop, in fast mode
        "stream": True,
        "input": [
            {"type": "message", "id": "msg_1", "role": "developer", "content": [{"type": "input_text", "text": "You"}]},
            {"type": "message", "id": "msg_2", "role": "developer", "content": [
                {"type": "input_text", "text": "<skills>"}, {"type": "input_text", "text": "<permissions>"}]},
            {"type": "message", "id": "msg_3", "role": "user", "content": [{"type": "input_text", "text": "<cwd>"}]},
            {"type": "message", "id": "msg_4", "role": "user", "content": [{"type": "input_text", "text": "list"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "ls"}],
             "encrypted_content": None},
            {"type": "function_call", "status": "completed", "id": "fc_1", "name": "shell", "arguments": "{}",
             "call_id": "call_1"},
            {"type": "function_call_output", "id": "fco_1", "call_id": "call_1", "output": "a.py"},
        ],
        "tools": [
            FUNCTION,
            {"type": "namespace", "name": "multi_agent_v1", "description": "Sub-agents.", "tools": [FUNCTION]},
            {"type": "web_search", "external_web_access": False},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a1",
        "client_metadata": {"x-codex-installation-id": "1"},
        "service_tier": "priority",
    },
    "openai": {  # 3.49, which sends all fields of an answer's items back
        "input": [
            {"role": "user", "content": "hi"},
            {"id": "rs_1", "summary": [], "type": "reasoning", "content": [{"text": "?", "type": "reasoning_text"}],
             "encrypted_content": None, "status": "completed"},
            {"id": "msg_1", "content": [{"annotations": [], "text": "a", "type": "output_text", "logprobs": None}],
             "role": "assistant", "status": "completed", "type": "message", "phase": None},
            {"arguments": "{}", "call_id": "call_1", "name": "shell", "type": "function_call", "id": "fc_1",
             "async_": None, "caller": None, "namespace": None, "status": "completed", "async": None},
            {"type": "function_call_output", "call_id": "call_1", "output": "21"},
        ],
        "tools": [FUNCTION],
        "stream": True,
    },
    "openai-agents": {  # 0.24
        "include": [],
        "input": [
            {"content": "hi", "role": "user"},
            {"id": "rs_1", "summary": [], "type": "reasoning", "content": [{"text": "?", "type": "reasoning_text"}],
             "encrypted_content": None},
            {"arguments": "{}", "call_id": "call_1", "name": "shell", "type": "function_call", "id": "fc_1",
             "async_": None, "caller": None, "namespace": None, "status": "completed"},
            {"call_id": "call_1", "output": "21", "type": "function_call_output"},
        ],
        "instructions": "Help.",
        "tools": [{**FUNCTION, "strict": True, "description": "Run."}],
    },
    "pydantic-ai": {  # 2.66
        "stream": False,
        "input": [
            {"role": "user", "content": "hi"},
            {"id": "rs_1", "summary": [], "encrypted_content": None, "type": "reasoning",
             "content": [{"text": "?", "type": "reasoning_text"}]},
            {"role": "assistant", "content": "hello"},
            {"name": "shell", "arguments": "{}", "call_id": "call_1", "type": "function_call"},
            {"type": "function_call_output", "call_id": "call_1", "output": "21"},
        ],
        "tool_choice": "auto",
        "tools": [{**FUNCTION, "strict": True, "description": "Run."}],
    },
    "langchain": {  # langchain-openai 1.7, whose streams lose the text of reasoning
        "stream": True,
        "input": [
            {"content": "hi", "role": "user", "type": "message"},
            {"id": "rs_1", "summary": [], "type": "reasoning", "status": "in_progress"},
            {"type": "message", "content": [{"type": "output_text", "text": "a", "annotations": []}],
             "role": "assistant", "id": "msg_1"},
            {"type": "function_call", "name": "shell", "arguments": "{}", "call_id": "call_1", "id": "fc_1"},
            {"type": "function_call_output", "output": "21", "call_id": "call_1"},
        ],
        "tools": [FUNCTION],
    },
    "ai-sdk": {  # 7, told not to store; else it refers to stored items
        "input": [
            {"role": "system", "content": "Help."},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"role": "assistant", "content": [{"type": "output_text", "text": "hello"}], "id": "msg_1"},
        ],
        "text": {"format": {"type": "json_schema", "strict": True, "name": "r", "schema": {"type": "object"}}},
        "store": False,
    },
}  # fmt: skip


def parse(*, refuses_unknown: bool = False, **more: Any) -> tuple[Request, tuple[str, ...]]:
    body = msgspec.json.encode({"model": "m", "input": "hi", **more})
    request, cleaned = CREATE.parse(body, "id", {}, refuses_unknown=refuses_unknown)
    return request, cleaned.ignored


def sent(**more: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(parse(**more)[0].body)
    return decoded


@pytest.mark.parametrize("client", CLIENTS)
def test_what_clients_send_is_read(client: str) -> None:
    request, ignored = parse(refuses_unknown=True, **CLIENTS[client])
    got = msgspec.json.decode(request.body)
    assert {"service_tier", "prompt_cache_key", "client_metadata", "previous_response_id"}.isdisjoint(got)
    assert (got["store"], got["request_id"]) == (False, "resp_id")
    if client == "codex":
        assert ignored == ("client_metadata", "web_search", "encrypted_content")
        assert [tool["type"] for tool in got["tools"]] == ["function", "namespace"]
        assert (request.call.tier, request.streaming, got["reasoning"]) == ("fast", True, {})


def test_codex_is_told_why_a_name_of_its_vendor_does_not_work() -> None:
    with pytest.raises(InvalidRequest, match="use another name"):
        parse(input=[{"type": "additional_tools", "id": "at_1", "role": "developer", "tools": []}])


def test_what_vllm_cannot_read_is_sent_in_a_form_that_it_can() -> None:
    parts = [{"type": "output_text", "text": "a", "annotations": []}, {"type": "refusal", "refusal": "b"}]
    items = sent(
        input=[
            {"type": "message", "id": "msg_1", "role": "assistant", "status": "incomplete", "content": parts},
            {"role": "assistant", "content": []},
            {"type": "reasoning", "id": "rs_1"},
            {"type": "custom_tool_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "x"}] * 2},
        ]
    )["input"]
    assert items == [
        {"type": "message", "role": "assistant", "content": "ab"},
        {"type": "message", "role": "assistant", "content": ""},
        {"type": "reasoning", "summary": []},
        {"type": "custom_tool_call_output", "call_id": "c", "output": "x\nx"},
    ]


def test_without_tools_nothing_is_said_about_them() -> None:
    got = sent(tools=[{"type": "web_search"}], tool_choice="auto")
    assert {"tools", "tool_choice"}.isdisjoint(got)


@pytest.mark.parametrize(
    "more",
    [
        {"max_output_tokens": 0},
        {"max_output_tokens": 2**20},
        {"metadata": {"a": 1}},
        {"metadata": {str(number): "x" for number in range(17)}},
        {"include": ["x"] * 17},
        {"include": ["message.output_text.logprobs"], "top_logprobs": 20, "max_output_tokens": 10_000},
        {"text": {"format": {"type": "json_schema"}}},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"minItems": 1001, "type": "array"}}}},
        {"tools": [{**FUNCTION, "strict": True, "parameters": {"maxLength": 9999, "type": "string"}}]},
        {"tools": [{"type": "namespace", "name": "n", "tools": [{**FUNCTION, "parameters": {"maxLength": 9999}}]}],
         "tool_choice": {"type": "function", "name": "n__shell"}},
        {"previous_response_id": "x" * 2_000},
        {"chat_template": "x"},
        {"cache_salt": "x"},
        {"kv_transfer_params": {"a": 1}},
        {"priority": 1},
    ],
    ids=["no-tokens", "too-many-tokens", "metadata-type", "metadata-count", "include-count", "logprobs", "no-schema",
         "schema", "strict-tool", "forced-tool", "long-id", "template", "salt", "kv", "priority"],
)  # fmt: skip
def test_what_could_harm_an_engine_is_refused(more: dict[str, Any]) -> None:
    with pytest.raises((InvalidRequest, msgspec.ValidationError)):
        parse(**more)


# --- the meter -------------------------------------------------------------------------------------------------------

PLAN = ChoicePlan(
    (
        Piece("reasoning", "hm"),
        Piece("text", "Hej "),
        Piece("text", "världen"),
        Piece("call", "shell"),
        Piece("arguments", "{}"),
        Piece("end"),
    ),
    "stop",
    None,
    "auto",
)


def events() -> list[bytes]:
    answer = ScriptedAnswer("resp-1", "1", 1, "m", 9, len(PLAN.pieces), None, body=b"{}")
    engine = ResponsesFormat(answer, [PLAN], 0, has_reasoning=True)
    chunks = b"".join([engine.token(number) for number in range(1, 7)]) + engine.closing({})
    found = []
    while chunks:
        size, _, rest = chunks.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        chunks = rest[int(size, 16) + 2 :]
    return found


def meter(**form: Any) -> ResponsesMeter:
    return ResponsesForm(**{"streaming": True, **form}).meter(GRANT)


def end(of: ResponsesMeter) -> bytes:
    return of.end(Receipt(GRANT, "finished", of.usage(), None, None, Bill(0), 0, 0.1, 1))


def test_pieces_of_any_size_are_read_alike() -> None:
    stream = b"".join(events())
    seen = []
    for size in (1, 7, 100, len(stream)):
        one = meter()
        passed = b"".join(one.feed(stream[at : at + size], float(at)) for at in range(0, len(stream), size))
        assert one.is_complete
        assert one.usage() == Usage(9, 0, (6,))
        seen.append((passed, msgspec.json.decode(end(one).split(b"data: ")[1])["response"]["output"]))
    assert seen.count(seen[0]) == len(seen)
    assert b'"service_tier":"fast"' in seen[0][0]


def test_a_stream_that_is_cut_anywhere_has_a_count() -> None:
    one, counts = meter(), []
    assert one.usage() == Usage(0, 0, (0,))
    for event in events()[:-1]:
        one.feed(event, 1.0)
        counts.append((one.usage().prompt_tokens, one.usage().output_tokens))
    assert counts[0] == (0, 0)
    assert sorted(counts) == counts
    assert counts[-1] == (0, 4)  # a lower bound: the name of the tool and the end have no delta
    assert not one.is_complete


def test_a_whole_answer_is_the_last_event_of_a_stream() -> None:
    one = meter(streaming=False)
    assert all(event is not None for event in [one.feed(event, 1.0) for event in events()])
    whole = msgspec.json.decode(end(one))
    assert (whole["object"], whole["status"], len(whole["output"])) == ("response", "completed", 3)
    assert whole["usage"]["headway"]["tier_served"] == "fast"


def changed(**usage: Any) -> bytes:
    name, _, payload = events()[-1].partition(b"data: ")
    event = msgspec.json.decode(payload)
    event["response"]["usage"] |= usage
    return name + b"data: " + msgspec.json.encode(event) + b"\n\n"


@pytest.mark.parametrize(
    "last",
    [
        changed(output_tokens=1.5),
        changed(output_tokens=-1),
        changed(output_tokens=None),
        changed(output_tokens=2**31),
        changed(output_tokens=101),
        changed(input_tokens="9"),
        changed(input_tokens_details={"cached_tokens": 10}),
        b'event: response.completed\ndata: {"sequence_number":1}\n\n',
        b"event: response.completed\ndata: {\n\n",
        events()[-1].replace(b'"status":"completed"', b'"status":"cancelled"'),
        events()[-1] * 2,
        b"event: response.output_text.delta\ndata: \xff\n\n",
        b'event: error\ndata: {"error":{"message":"no","code":500}}\n\n',
        b'data: {"error":{"message":"no","code":400}}\n\n',
    ],
    ids=["float", "negative", "null", "huge", "more-than-asked", "text", "cached", "no-response", "no-json", "cancelled",
         "twice", "not-utf8", "error", "bare-error"],
)  # fmt: skip
def test_what_an_engine_cannot_mean_is_its_failure(last: bytes) -> None:
    one = meter(max_tokens=100)
    for event in events()[:-1]:
        one.feed(event, 1.0)
    with pytest.raises(EngineLost):
        one.feed(last, 2.0)
    assert one.usage().output_tokens in (4, 6)


def test_an_error_of_the_client_before_the_first_token_is_told() -> None:
    one = meter()
    with pytest.raises(EngineFailed) as failed:
        one.feed(b'data: {"error":{"message":"no","code":400}}\n\n', 1.0)
    assert isinstance(failed.value, EngineAnswered)


def test_an_error_before_anything_was_sent_begins_the_response() -> None:
    stream = responses.error_event(EngineLost("gone"), "id")
    kinds = [msgspec.json.decode(part.split(b"data: ")[1])["type"] for part in stream.strip().split(b"\n\n")]
    assert kinds == ["response.created", "response.failed"]

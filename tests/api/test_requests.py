"""What a request may hold, and what the engine is sent of it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from headway.api import anthropic, openai
from headway.errors import InvalidRequest

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
PROMPT: dict[str, Any] = {"model": "m", "prompt": "hi"}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 5}

READERS = {
    "chat": (openai.read_chat, CHAT),
    "completions": (openai.read_completion, PROMPT),
    "messages": (anthropic.read_messages, MESSAGES),
    "count_tokens": (anthropic.read_count_tokens, CHAT),
}


def sent(kind: str, **fields: Any) -> dict[str, Any]:
    read, body = READERS[kind]
    forwarded: dict[str, Any] = msgspec.json.decode(read(msgspec.json.encode({**body, **fields}), "id").body)
    return forwarded


# Each of these has killed, blocked or opened a shared engine somewhere, or would let one client reach
# into another's calls.
HARMFUL = {
    "chat_template": "{{ 1 }}",
    "chat_template_kwargs": {"x": [1]},
    "media_io_kwargs": {},
    "mm_processor_kwargs": {},
    "prompt_embeds": "AAAA",
    "priority": -100,
    "cache_salt": "theirs",
    "kv_transfer_params": {"do_remote_prefill": True},
    "ec_transfer_params": {},
    "request_id": "someone-elses",
    "vllm_xargs": {},
    "documents": [],
    "best_of": 10_000,
    "use_beam_search": True,
    "truncate_prompt_tokens": 1,
    "prompt_logprobs": 1000,
    "return_token_ids": True,
    "api_base": "http://169.254.169.254/",
    "stream_interval": 1,
}


@pytest.mark.parametrize("kind", READERS)
@pytest.mark.parametrize("field", HARMFUL)
def test_fields_not_on_the_list_are_refused(kind: str, field: str) -> None:
    with pytest.raises((msgspec.ValidationError, InvalidRequest), match=field):
        sent(kind, **{field: HARMFUL[field]})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("chat", {"n": 9}),
        ("chat", {"n": 0}),
        ("chat", {"max_tokens": 0}),
        ("chat", {"max_tokens": 2**40}),
        ("chat", {"max_completion_tokens": -1}),
        ("chat", {"top_logprobs": 21}),
        ("chat", {"stop": ["x"] * 17}),
        ("chat", {"stop": "x" * 257}),
        ("chat", {"temperature": 2.5}),
        ("chat", {"logit_bias": {str(n): 1 for n in range(2000)}}),
        ("chat", {"messages": []}),
        ("chat", {"messages": [{"role": "user", "content": "x"}] * 5000}),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f"}}] * 129}),
        ("chat", {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"a": "x" * 70_000}}}]}),
        ("chat", {"structured_outputs": {"regex": "(a+)+b"}}),
        ("chat", {"structured_outputs": {"regex": "a{1,30000}"}}),
        ("chat", {"structured_outputs": {"regex": "a" * 1001}}),
        ("chat", {"structured_outputs": {"grammar": "root ::= root"}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"pattern": "(a*)*"}}}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"$ref": "http://x"}}}}),
        ("chat", {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"maxItems": 9999}}}}),
        ("chat", {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}),
        ("chat", {"stream_options": {"include_usage": True}}),
        ("completions", {"n": 100}),
        ("completions", {"logprobs": 100}),
        ("completions", {"prompt": ["many", "prompts"]}),
        ("messages", {"max_tokens": 2**40}),
        ("messages", {"stop_sequences": ["x"] * 17}),
        ("messages", {"messages": [{"role": "user", "content": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]}]}),
        ("messages", {"tools": [{"name": "f", "input_schema": {"pattern": "a{99999}"}, "strict": True}]}),
        ("messages", {"mcp_servers": [{"url": "http://x"}]}),
        ("count_tokens", {"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]}),
    ],
)  # fmt: skip
def test_values_beyond_the_bounds_are_refused(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises((msgspec.ValidationError, InvalidRequest)):
        sent(kind, **fields)


def test_a_schema_that_is_too_deep_is_refused() -> None:
    schema: dict[str, Any] = {}
    for _ in range(30):
        schema = {"properties": {"x": schema}}
    with pytest.raises(InvalidRequest, match="deep"):
        sent("messages", tools=[{"name": "f", "input_schema": schema}])


# --- what an engine compiles -----------------------------------------------------------------------------------------

BOMB = {"type": "array", "minItems": 100_000, "items": {"type": "string", "pattern": "(a{1,1000}){1,1000}"}}


def doubled(levels: int) -> dict[str, Any]:
    """A schema whose definitions refer to the next one twice."""
    defs: dict[str, Any] = {f"d{levels}": {"type": "string"}}
    for number in range(levels):
        one = {"$ref": f"#/$defs/d{number + 1}"}
        defs[f"d{number}"] = {"type": "object", "properties": {"a": one, "b": one}}
    return {"$defs": defs, "$ref": "#/$defs/d0"}


def schema_with(schema: object) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": schema}}}


def nested_arrays(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string", "minLength": 1000}
    for _ in range(levels):
        schema = {"type": "array", "minItems": 1000, "items": schema}
    return schema


def tool(kind: str, schema: object, **more: object) -> dict[str, Any]:
    if kind == "messages":
        return {"name": "f", "input_schema": schema, **more}
    return {"type": "function", "function": {"name": "f", "parameters": schema, **more}}


@pytest.mark.parametrize(
    "pattern",
    [
        "(a{1,1000}){1,1000}", "(a{1,1000}b){1,1000}", "((a+))+", "(?:a+b?)+c", "(a+|b)+", "(x*x*)*y", "(a+$)+",
        "(a+(|b))+", "((-a+)*)*", "[a-z]{1,1000}" * 60, "(" * 30 + "a" + ")?" * 30,
    ],
)  # fmt: skip
def test_a_pattern_is_measured_with_its_nested_repeats(pattern: str) -> None:
    with pytest.raises(InvalidRequest):
        sent("chat", structured_outputs={"regex": pattern})
    with pytest.raises(InvalidRequest):
        sent("chat", **schema_with({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(
    "pattern",
    [
        r"^[a-z]+(-[a-z0-9]+)*$", r"^\d{4}-\d{2}-\d{2}$", r"^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==)?$",
        r"^[\w.+-]+@[\w-]+(\.[\w-]+)+$", r"^\p{L}+( \p{L}+)*$", r"^/(?:[^/]+/)*[^/]*$", r"^(\{\{[^}]*\}\})?$", "a{1,1000}",
        r"^(?<major>0|[1-9]\d*)\.(?<minor>0|[1-9]\d*)$", "(a+?b)+",
    ],
)  # fmt: skip
def test_a_harmless_pattern_passes(pattern: str) -> None:
    sent("chat", structured_outputs={"regex": pattern})
    sent("chat", **schema_with({"type": "string", "pattern": pattern}))


@pytest.mark.parametrize(
    "schema",
    [
        BOMB, nested_arrays(2), nested_arrays(3), {"$ref": "#"}, doubled(20), {"$ref": "#/not/there"},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}]}}, "$ref": "#/$defs/a"},
        {"minProperties": 1000, "additionalProperties": {"type": "string", "maxLength": 1000}},
        {"enum": ["x" * 30_000, "y" * 30_000]},
        {"properties": {f"p{number}": {"pattern": "a?" * 100} for number in range(100)}},
    ],
)  # fmt: skip
@pytest.mark.parametrize("as_text", [False, True])
def test_a_schema_is_measured_with_its_nested_repeats_also_if_it_is_sent_as_text(
    schema: dict[str, Any], as_text: bool
) -> None:
    with pytest.raises(InvalidRequest):
        sent("chat", structured_outputs={"json": msgspec.json.encode(schema).decode() if as_text else schema})
    with pytest.raises(InvalidRequest):
        sent("chat", **schema_with(schema))
    with pytest.raises(InvalidRequest):
        sent("messages", output_config={"format": {"type": "json_schema", "schema": schema}})


def test_text_that_is_no_schema_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="not valid JSON"):
        sent("chat", structured_outputs={"json": "{"})


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "default": {"maxLength": 99_999, "pattern": "(a+)+", "$ref": "http://x"}},
        {"enum": [{"maxItems": 99_999}], "examples": [{"pattern": "(a+)+"}]},
        {"properties": {"pattern": {"type": "string"}, "maxLength": {"const": {"maxLength": 99_999}}}},
        {"properties": {"children": {"type": "array", "items": {"$ref": "#"}}}},
        {"$defs": {"a~b/c": {"type": "string"}}, "anyOf": [{"$ref": "#/$defs/a~0b~1c"}, {"type": "null"}]},
    ],
)
def test_what_is_data_in_a_schema_and_what_recurs_is_no_grammar_that_explodes(schema: dict[str, Any]) -> None:
    assert sent("chat", **schema_with(schema))["response_format"]["json_schema"]["schema"] == schema


@pytest.mark.parametrize("kind", ["chat", "messages"])
def test_a_tool_that_is_only_shown_to_the_model_may_say_what_it_likes(kind: str) -> None:
    """One of Claude Code's own tools has a `maxLength` of 524,288."""
    schema = {"properties": {"content": {"type": "string", "maxLength": 524_288, "pattern": "(a+)+"}}}
    assert sent(kind, tools=[tool(kind, schema)])["tools"] == [tool(kind, schema)]
    other: dict[str, Any] = {"type": "tool", "name": "g"}
    if kind == "chat":
        other = {"type": "function", "function": {"name": "g"}}
    sent(kind, tools=[tool(kind, schema)], tool_choice=other)


def test_a_tool_that_an_engine_compiles_is_measured() -> None:
    with pytest.raises(InvalidRequest):
        sent("chat", tools=[tool("chat", BOMB, strict=True)])
    named: list[Any] = [{"type": "function", "function": {"name": "f"}}, {"function": {"name": "f"}}]
    for choice in ("required", *named):
        with pytest.raises(InvalidRequest):
            sent("chat", tools=[tool("chat", BOMB)], tool_choice=choice)
    with pytest.raises(InvalidRequest):
        sent("messages", tools=[tool("messages", BOMB, strict=True)])
    for choice in ({"type": "any"}, {"type": "tool", "name": "f"}):
        with pytest.raises(InvalidRequest):
            sent("messages", tools=[tool("messages", BOMB)], tool_choice=choice)


def test_all_schemas_of_a_request_are_measured_together() -> None:
    patterns = {f"{number:x}": {"pattern": "{1{1" * 8} for number in range(1000)}
    for schema, choice in ((patterns, "auto"), (patterns, "required"), (nested_arrays(1), "required")):
        with pytest.raises(InvalidRequest):
            sent("chat", tools=[tool("chat", schema)] * 128, tool_choice=choice)


def test_a_list_of_choices_is_measured_by_its_text() -> None:
    """256 choices of 1,000 characters kept xgrammar busy for more than 20 s."""
    sent("chat", structured_outputs={"choice": ["yes", "no"]})
    with pytest.raises(InvalidRequest):
        sent("chat", structured_outputs={"choice": ["x" * 1000 + str(number) for number in range(256)]})


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("chat", {"stop_token_ids": [2**31], "min_tokens": 3}),
        ("chat", {"stop_token_ids": [2**20]}),
        ("chat", {"stop_token_ids": [-1]}),
        ("chat", {"logit_bias": {str(2**31): 1}}),
        ("chat", {"logit_bias": {"-1": 1}}),
        ("chat", {"logit_bias": {"word": 1}}),
        ("completions", {"prompt": [2**31]}),
    ],
)
def test_no_token_id_is_beyond_any_vocabulary(kind: str, fields: dict[str, Any]) -> None:
    with pytest.raises((msgspec.ValidationError, InvalidRequest)):
        sent(kind, **fields)


def test_token_ids_arrive_unchanged() -> None:
    fields: dict[str, Any] = {"stop_token_ids": [0, 49_151], "logit_bias": {"17": -100.0, "49151": 2.5}}
    got = sent("chat", **fields)
    assert {key: got[key] for key in fields} == fields


@pytest.mark.parametrize("tier", ["auto", "default", "standard", "standard_only", "scale", None])
def test_words_for_standard_are_understood_and_not_sent_on(tier: str | None) -> None:
    assert "service_tier" not in sent("chat", service_tier=tier)


@pytest.mark.parametrize(
    ("asked", "tier"), [("fast", "fast"), ("priority", "fast"), ("ultrafast", "ultrafast"), ("flex", "flex")]
)
def test_a_tier_is_understood_and_not_sent_on(asked: str, tier: str) -> None:
    request = openai.read_chat(msgspec.json.encode({**CHAT, "service_tier": asked}), "id")
    assert request.call.tier == tier
    assert request.call.falls_back, "this dialect is soft"
    assert b"service_tier" not in request.body


def test_a_speed_is_understood_and_not_sent_on() -> None:
    request = anthropic.read_messages(msgspec.json.encode({**MESSAGES, "speed": "fast"}), "id")
    assert request.call.tier == "fast"
    assert not request.call.falls_back, "this dialect is hard"
    assert b"speed" not in request.body


def test_what_only_the_gateway_reads_is_not_sent_on() -> None:
    assert "stream_options" not in sent("chat", stream=True, stream_options={"include_usage": True})
    assert "stream_options" not in sent("chat")


def test_what_a_client_may_say_arrives_unchanged() -> None:
    fields: dict[str, Any] = {
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "user", "content": [{"type": "text", "text": "hé"}], "name": "u"},
            {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "1", "content": "42"},
        ],
        "temperature": None,
        "top_p": 0.9,
        "stop": ["\n", "END"],
        "seed": -5,
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "x": 1.50}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_object"},
        "top_k": 5,
        "ignore_eos": True,
    }  # fmt: skip
    got = sent("chat", **fields)
    assert {key: got[key] for key in fields} == fields
    block = {"type": "text", "text": "x"}
    fields = {"system": [block], "stop_sequences": ["a"], "thinking": {"type": "disabled"}, "top_k": 3}
    got = sent("messages", **fields)
    assert {key: got[key] for key in fields} == fields


def test_an_answers_message_can_be_sent_back() -> None:
    message = {"role": "assistant", "content": "Hi", "refusal": None, "audio": None}
    message |= {"function_call": None, "tool_calls": None, "reasoning": None}
    sent("chat", messages=[{"role": "user", "content": "x"}, message, {"role": "user", "content": "y"}])


@pytest.mark.parametrize(
    ("kind", "fields", "bound"),
    [
        ("chat", {"logprobs": True, "top_logprobs": 20, "max_tokens": 1561}, "32,768 log-probabilities"),
        ("chat", {"logprobs": True, "top_logprobs": 20, "max_completion_tokens": 200, "n": 8}, "32,768 log-prob"),
        ("chat", {"logprobs": True, "max_tokens": 40_000, "stream": True}, "32,768 log-probabilities"),
        ("completions", {"logprobs": 20, "max_tokens": 1561}, "32,768 log-probabilities"),
        ("completions", {"logprobs": 5, "max_tokens": 1, "echo": True, "prompt": "x" * 6000}, "32,768 log-prob"),
        ("completions", {"logprobs": 5, "echo": True, "prompt": [1] * 6000}, "32,768 log-probabilities"),
        ("completions", {"echo": True, "prompt": "x" * 150_000, "n": 8}, "1,048,576 bytes"),
        ("completions", {"echo": True, "prompt": [1] * 20_000}, "1,048,576 bytes"),
        ("chat", {"max_tokens": 20_000, "n": 8}, "131,072 tokens"),
        ("messages", {"max_tokens": 131_073}, "131,072 tokens"),
    ],
)
def test_a_request_for_too_large_an_answer_is_refused_with_the_bound(kind: str, fields: Any, bound: str) -> None:
    with pytest.raises(InvalidRequest, match=bound):
        sent(kind, **fields)


def test_large_answers_within_the_bounds_may_be_asked_for() -> None:
    assert sent("chat", logprobs=True, top_logprobs=20, max_tokens=1560)
    assert sent("chat", max_tokens=100_000, n=8, stream=True)
    assert sent("completions", echo=True, logprobs=1, prompt="x" * 8000, max_tokens=16)
    assert sent("messages", max_tokens=200_000, stream=True)


def test_only_a_client_that_sets_a_limit_has_bounded_its_answer() -> None:
    assert openai.read_chat(msgspec.json.encode({**CHAT, "max_tokens": 5}), "id").is_bounded
    assert not openai.read_chat(msgspec.json.encode(CHAT), "id").is_bounded


TOOL: dict[str, Any] = {"type": "function", "function": {"name": "f"}}
SCHEMA: dict[str, Any] = {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}}}


@pytest.mark.parametrize(
    ("kind", "fields", "collect"),
    [
        ("chat", {}, "if_same"),
        ("chat", {"n": 2, "logprobs": True, "response_format": SCHEMA, "stop": "x"}, "if_same"),
        ("chat", {"stream": True}, "never"),
        ("chat", {"tools": [TOOL]}, "never"),
        ("completions", {"logprobs": 2, "n": 2}, "if_same"),
        ("completions", {"echo": True}, "never"),
        ("messages", {}, "if_same"),
        ("messages", {"tools": [{"name": "f", "input_schema": {}}]}, "never"),
        ("messages", {"tools": [{"name": "f", "input_schema": {}}], "speed": "fast"}, "always"),
        ("messages", {"stream": True, "speed": "fast"}, "never"),
        ("count_tokens", {}, "never"),
    ],
)
def test_whole_answers_are_collected_where_that_changes_nothing(kind: str, fields: Any, collect: str) -> None:
    read, body = READERS[kind]
    request = read(msgspec.json.encode({**body, **fields}), "id")
    assert request.collect == collect
    assert msgspec.json.decode(request.body).get("stream") is (True if request.streaming else None)

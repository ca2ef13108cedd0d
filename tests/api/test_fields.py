"""Three classes of fields: what clients send, what becomes of it, and what the engine gets."""

from __future__ import annotations

import tracemalloc
from typing import Any

import msgspec
import pytest

from headway.api import anthropic, fields, limits, openai
from headway.api.dialect import CallRoute
from headway.auto.gate import GateCall
from headway.auto.requests import CallRungs
from headway.errors import InvalidRequest
from headway.wire import Request

ROUTES: dict[str, CallRoute] = {
    "chat": openai.ROUTES[0],
    "completions": openai.ROUTES[1],
    "messages": anthropic.ROUTES[0],
    "count_tokens": anthropic.ROUTES[1],
}
SAID: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
BODIES: dict[str, dict[str, Any]] = {
    "chat": SAID,
    "completions": {"model": "m", "prompt": "hi"},
    "messages": {**SAID, "max_tokens": 5},
    "count_tokens": SAID,
}
FUNCTION = {"name": "f", "arguments": "{}"}
CALL = {"id": "1", "type": "function", "function": FUNCTION}


def parse(kind: str, *, refuses_unknown: bool = False, **more: Any) -> tuple[Request, fields.Cleaned]:
    body = msgspec.json.encode({**BODIES[kind], **more})
    return ROUTES[kind].parse(body, "id", {}, refuses_unknown=refuses_unknown)


def sent(kind: str, **more: Any) -> dict[str, Any]:
    decoded: dict[str, Any] = msgspec.json.decode(parse(kind, **more)[0].body)
    return decoded


def ignored(kind: str, **more: Any) -> tuple[str, ...]:
    return parse(kind, **more)[1].ignored


def refusal(kind: str, *, refuses_unknown: bool = False, **more: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        parse(kind, refuses_unknown=refuses_unknown, **more)
    return caught.value


def said(**more: Any) -> dict[str, Any]:
    """A conversation whose second message has these fields."""
    return {"messages": [SAID["messages"][0], {"role": "assistant", "content": "x", **more}, SAID["messages"][0]]}


def with_part(**part: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "x", **part}]}]}


def with_tool(kind: str, **more: Any) -> dict[str, Any]:
    if kind == "chat":
        return {"tools": [{"type": "function", "function": {"name": "f"}, **more}]}
    return {"tools": [{"name": "f", "input_schema": {"type": "object"}, **more}]}


EPHEMERAL = {"type": "ephemeral"}

# client, endpoint, what it sends, the names that are ignored
IGNORED: list[tuple[str, str, dict[str, Any], tuple[str, ...]]] = [
    ("openai", "chat", {"verbosity": "low"}, ("verbosity",)),
    ("openai", "chat", {"prediction": {"type": "content", "content": "x"}}, ("prediction",)),
    ("openai", "chat", {"modalities": ["text"]}, ("modalities",)),
    ("openai", "chat", {"prompt_cache_retention": "24h"}, ("prompt_cache_retention",)),
    ("openai", "chat", {"store": False, "metadata": {"a": "b"}}, ("store", "metadata")),
    ("openai", "chat", {"safety_identifier": "u"}, ("safety_identifier",)),
    ("openai", "chat", said(annotations=[{"type": "url_citation"}]), ("annotations",)),
    ("litellm", "chat", said(provider_specific_fields={"refusal": None}), ("provider_specific_fields",)),
    ("litellm", "chat", said(tool_calls=[{**CALL, "index": 0, "provider_specific_fields": {}}]), ("index", "provider_specific_fields")),
    ("litellm", "chat", said(tool_calls=[{**CALL, "function": {**FUNCTION, "extra_content": {}}}]), ("extra_content",)),
    ("openrouter", "chat", with_part(cache_control=EPHEMERAL), ("cache_control",)),
    ("vllm", "chat", {"guided_decoding_backend": "xgrammar"}, ("guided_decoding_backend",)),
    ("langchain", "completions", {"best_of": 1, "suffix": None, "logit_bias": {}}, ("best_of",)),
    ("ai sdk", "chat", said(providerOptions={"x": {}}), ("providerOptions",)),
    ("claude code", "messages", {"context_management": {"edits": [{"type": "clear_thinking_20251015"}]}}, ("context_management",)),
    ("claude code", "messages", {"metadata": {"user_id": "u"}}, ("metadata",)),
    ("claude code", "messages", {"system": [{"type": "text", "text": "x", "cache_control": EPHEMERAL}]}, ("cache_control",)),
    ("claude code", "messages", with_part(cache_control=EPHEMERAL, citations=None), ("cache_control", "citations")),
    ("claude code", "count_tokens", {"metadata": {"user_id": "u"}}, ("metadata",)),
    ("pi", "messages", with_tool("messages", eager_input_streaming=True), ("eager_input_streaming",)),
    ("anthropic", "messages", with_tool("messages", defer_loading=True, allowed_callers=["direct"], input_examples=[{"a": 1}]), ("defer_loading", "allowed_callers", "input_examples")),
    ("anthropic", "messages", said(id="msg_1", type="message", model="m", stop_reason="end_turn", usage={"input_tokens": 1}, container=None), ("id", "type", "model", "stop_reason", "usage", "container")),
    ("anthropic", "messages", {"mcp_servers": [], "thread": None}, ("mcp_servers", "thread")),
    ("anyone", "chat", {"my_own": {"nested": [1]}}, ("my_own",)),
    ("anyone", "chat", {"stream": True, "stream_options": {"include_usage": True, "new": 1}}, ("new",)),
]  # fmt: skip


@pytest.mark.parametrize(("client", "kind", "more", "names"), IGNORED)
def test_hints_are_removed_and_named(client: str, kind: str, more: dict[str, Any], names: tuple[str, ...]) -> None:
    request, cleaned = parse(kind, **more)
    assert cleaned.ignored == names
    for name in set(names) - {"type", "id", "model"}:  # these are honoured elsewhere
        assert f'"{name}"'.encode() not in request.body, f"the engine of {client} got {name}"
    kept = msgspec.json.decode(request.body)
    assert set(kept) <= {*BODIES[kind], *more}


REFUSED: list[tuple[str, str, dict[str, Any], str, str]] = [
    ("openai", "chat", {"modalities": ["text", "audio"]}, "modalities", "text only"),
    ("openai", "chat", {"functions": [{"name": "f"}]}, "functions", "`tools`"),
    ("openai", "chat", {"web_search_options": {"search_context_size": "low"}}, "web_search_options", "search tool"),
    ("openai", "chat", said(function_call=FUNCTION), "function_call", "`tool_calls`"),
    ("openai", "chat", said(audio={"id": "a"}), "audio", "text only"),
    ("openai", "completions", {"suffix": "x"}, "suffix", "prompt"),
    ("vllm", "chat", {"bad_words": ["x"]}, "bad_words", "`logit_bias`"),
    ("vllm", "chat", {"allowed_token_ids": [1]}, "allowed_token_ids", "`logit_bias`"),
    ("vllm", "chat", {"truncate_prompt_tokens": 5}, "truncate_prompt_tokens", "cut"),
    ("vllm", "chat", {"prompt_logprobs": 0}, "prompt_logprobs", "`echo`"),
    ("vllm", "chat", {"guided_grammar": "root ::= x"}, "guided_grammar", "structured_outputs"),
    ("vllm", "chat", {"structured_outputs": {"grammar": "root ::= x"}}, "grammar", "structured_outputs.json"),
    ("vllm", "chat", {"cache_salt": "theirs"}, "cache_salt", "tenants"),
    ("vllm", "messages", {"kv_transfer_params": {"do_remote_prefill": True}}, "kv_transfer_params", "operator"),
    ("anthropic", "messages", {"mcp_servers": [{"url": "http://x"}]}, "mcp_servers", "`tools`"),
    ("anthropic", "messages", {"container": "c"}, "container", "tool"),
    ("anthropic", "messages", {"inference_geo": "eu"}, "inference_geo", "operator"),
    ("anthropic", "count_tokens", {"thread": {"type": "create"}}, "thread", "full conversation"),
]  # fmt: skip


@pytest.mark.parametrize(("client", "kind", "more", "name", "advice"), REFUSED)
def test_what_changes_the_meaning_is_refused_by_name(
    client: str, kind: str, more: dict[str, Any], name: str, advice: str
) -> None:
    error = refusal(kind, **more)
    assert (error.status, error.param) == (400, name), client
    assert name in error.message
    assert advice in error.message


PARTS: list[tuple[str, dict[str, Any], str]] = [
    ("chat", {"type": "image_url", "image_url": {"url": "http://x"}}, "the image itself"),
    ("chat", {"image_url": {"url": "http://x"}, "type": "image_url"}, "the image itself"),
    ("chat", {"type": "file", "file": {"file_data": "x"}}, "text of the file"),
    ("chat", {"type": "made_up", "text": "x"}, "Supported here: image_url, refusal, text"),
    ("chat", {"type": "text", "text": "x", "image_url": {"url": "http://x"}}, "must be `image_url`"),
    ("messages", {"type": "image", "source": {"type": "url", "url": "http://x"}}, "send the image itself"),
    ("messages", {"type": "document", "source": {}}, "text of the document"),
    ("messages", {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "image"}]}, "Missing field"),
    ("messages", {"type": "tool_result", "content": [{"type": "tool_reference", "tool_name": "f"}]}, "`tools`"),
    ("messages", {"type": "server_tool_use", "id": "1", "input": {}}, "Supported here"),
]


@pytest.mark.parametrize(("kind", "part", "advice"), PARTS)
def test_an_unknown_content_part_is_never_dropped(kind: str, part: dict[str, Any], advice: str) -> None:
    assert advice in refusal(kind, messages=[{"role": "user", "content": [part]}], my_own=1).message


def test_tools_that_a_vendor_runs_are_refused() -> None:
    assert "`web_search_20250305`" in refusal("messages", tools=[{"type": "web_search_20250305", "name": "s"}]).message
    assert "`function`" in refusal("chat", tools=[{"type": "custom", "custom": {"name": "f"}}]).message
    assert "allowed tools" in refusal("chat", tool_choice={"type": "allowed_tools", "mode": "auto"}).message


# --- the setting -----------------------------------------------------------------------------------------------------


def test_unknown_fields_can_be_refused_and_hints_are_still_ignored() -> None:
    error = refusal("chat", refuses_unknown=True, my_own=1)
    assert (error.message, error.param) == ("Unknown field `my_own`. Remove it.", "my_own")
    assert "in `messages.content`" in refusal("chat", refuses_unknown=True, **with_part(my_own=1)).message
    assert parse("chat", refuses_unknown=True, verbosity="low", **said(audio=None, provider_specific_fields=None))[
        1
    ].ignored


def test_every_name_has_one_class() -> None:
    for kind, route in ROUTES.items():
        assert route.fields is not None
        names = route.fields.names
        assert not names.hints & set(names.refused), kind
        assert not set(names.moved) & ({*names.hints, *names.refused} | route.fields.root.names), kind
        assert not names.hints & route.fields.root.names, f"{kind}: what a Struct has is honoured"


# --- other names and forms of what is honoured -----------------------------------------------------------------------


def test_older_names_of_constraints_are_moved_to_where_the_engine_looks() -> None:
    assert sent("chat", guided_json={"type": "object"})["structured_outputs"] == {"json": {"type": "object"}}
    assert sent("completions", guided_regex="a+")["structured_outputs"] == {"regex": "a+"}
    assert sent("chat", guided_choice=["a", "b"], guided_regex=None)["structured_outputs"] == {"choice": ["a", "b"]}
    assert ignored("chat", guided_choice=["a", "b"]) == (), "it is honoured"
    with pytest.raises(InvalidRequest):  # measured like any other
        parse("chat", guided_regex="(a+)+")
    assert "Send only" in refusal("chat", guided_json={}, structured_outputs={"json": {}}).message
    wanted = {"type": "json_schema", "schema": {"type": "object"}}
    assert sent("messages", output_format={**wanted, "x": 1})["output_config"] == {"format": wanted}
    both = sent("messages", output_format=wanted, output_config={"effort": "low", "x": 1})
    assert both["output_config"] == {"effort": "low", "format": wanted}
    nothing_like_it: list[Any] = [[], "x", 1]
    for wrong in nothing_like_it:
        with pytest.raises((InvalidRequest, msgspec.ValidationError)):
            parse("messages", output_format=wanted, output_config=wrong)


def test_reasoning_of_earlier_turns_reaches_the_engine() -> None:
    got = sent("chat", **said(reasoning_content="so", reasoning="thus"))["messages"][1]
    assert (got["reasoning_content"], got["reasoning"]) == ("so", "thus")


@pytest.mark.parametrize(("prompt", "one"), [(["hi"], "hi"), ([[1, 2]], [1, 2]), ([1, 2], [1, 2]), ([""], "")])
def test_a_prompt_may_be_alone_in_a_list(prompt: Any, one: Any) -> None:
    assert sent("completions", prompt=prompt)["prompt"] == one


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], ["a", 1]])
def test_several_prompts_are_refused_by_name(prompt: Any) -> None:
    error = refusal("completions", prompt=prompt)
    assert error.param == "prompt"
    assert "request for each" in error.message


@pytest.mark.parametrize("prompt", [[1, "a"], [[]], [], [None], [{}]])
def test_what_is_no_prompt_is_refused(prompt: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match="prompt"):
        parse("completions", prompt=prompt)


@pytest.mark.parametrize("kind", ["enabled", "disabled"])
def test_thinking_without_a_budget_is_no_thinking(kind: str) -> None:
    thinking = {"type": kind, "budget_tokens": 0}
    assert sent("messages", thinking=thinking)["thinking"] == {"type": "disabled"}
    assert sent("count_tokens", thinking=thinking)["thinking"] == {"type": "disabled"}


def test_template_arguments_are_scalars_and_those_that_the_owner_allows() -> None:
    request, _ = parse("chat", chat_template_kwargs={"enable_thinking": False, "x": "y"})
    assert request.template_names == ("enable_thinking", "x")
    assert parse("messages", chat_template_kwargs={"enable_thinking": True})[0].template_names == ("enable_thinking",)
    limits.check_template_names(("enable_thinking",), ["enable_thinking"])
    with pytest.raises(InvalidRequest, match="Allowed: enable_thinking"):
        limits.check_template_names(request.template_names, ["enable_thinking"])
    harmful: list[Any] = [{"x": [1]}, {"x": {}}, {"x": "y" * 2000}, {str(n): 1 for n in range(17)}, {"x": "y" * 70_000}]
    for arguments in harmful:
        assert refusal("chat", chat_template_kwargs=arguments).param == "chat_template_kwargs"


def test_a_thread_is_refused_in_the_words_of_the_sdk() -> None:
    error = refusal("messages", thread={"type": "create"})
    body = msgspec.json.decode(anthropic.error_body(error, "id"))
    assert body["error"]["details"] == {"error_code": "thread_unsupported_request"}


def test_an_auto_model_sees_the_request_without_what_is_ignored_and_with_todays_names() -> None:
    def gate_call(**more: Any) -> GateCall | None:
        request, cleaned = parse("chat", **more)
        read = ROUTES["chat"].read
        rungs = CallRungs(cleaned.body, request, read, read, lambda one: one, ("m-spark", "m"), ["standard"])
        assert b"verbosity" not in rungs.to_audit(msgspec.json.encode({"choices": [{}]})).asked
        for rung in (rungs.to_student(is_held=False), rungs.to_student(is_held=True), rungs.to_full()):
            assert b"verbosity" not in rung.body
        return rungs.gate_call

    assert gate_call(verbosity="low") is not None
    assert gate_call(verbosity="low", guided_regex="a+") is None, "answers under such a constraint are not weighed"


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_a_value_that_is_not_looked_into_arrives_byte_for_byte() -> None:
    schema = b'{"type":"object","cache_control":1.50,"thread":12345678901234567890123,"default":{"maxLength":99999}}'
    body = b'{"model":"m","x":1,"messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":'
    body += b'{"name":"f","parameters":' + schema + b"}}]}"
    request, cleaned = ROUTES["chat"].parse(body, "id", {}, refuses_unknown=False)
    assert schema in request.body
    assert cleaned.ignored == ("x",)


def test_at_most_16_names_are_told_each_once_and_none_that_a_header_cannot_hold() -> None:
    assert len(ignored("chat", **{f"x{number}": 1 for number in range(50)})) == fields.MAX_NAMED
    assert ignored("chat", **{"a\r\nb: c": 1, "é": 2, "z" * 65: 3}) == ("?",)


def test_a_request_without_ignored_fields_is_read_once() -> None:
    assert ROUTES["chat"].fields is not None
    assert parse("chat", **said(audio=None, function_call=None, refusal=None, tool_calls=[CALL]))[1].ignored == ()
    with pytest.raises(msgspec.ValidationError, match="Expected `float"):
        parse("chat", temperature="hot")  # the reader's own words, if there is nothing else to say


def nested(kind: bytes, levels: int, inner: bytes = b"") -> bytes:
    return kind * levels + inner + (b"]" if kind == b"[" else b"}") * levels


@pytest.mark.parametrize(
    "body",
    [
        b'{"x":1,"messages":[' + b"{}," * 300_000 + b"{}]}",
        b'{"x":1,"model":"m","messages":' + nested(b"[", 100_000) + b"}",
        b'{"x":1,"model":"m","messages":' + nested(b'{"content":', 5_000, b"1") + b"}",
        b'{"x":1,"model":"m","prompt":["a"],"messages":["' + b"a" * 1_000_000 + b'"]}',
        b'{"x":1,"messages":[' + b'{"role":"user"},' * 40_000 + b"]",
        b'{"x":1,"messages":[{"role":',
    ],
    ids=["empty objects", "depth", "objects in depth", "texts for objects", "objects, cut off", "cut off"],
)
def test_what_cannot_be_read_is_refused_without_much_memory(body: bytes) -> None:
    """tests/api/test_cost.py measures more of this, and the time."""
    tracemalloc.start()
    with pytest.raises((InvalidRequest, msgspec.MsgspecError, RecursionError)):
        ROUTES["chat"].parse(body, "id", {}, refuses_unknown=False)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 16 * len(body) + 2**16


def test_an_unknown_value_of_any_depth_is_skipped_or_refused() -> None:
    body = msgspec.json.encode(SAID)[:-1]
    assert ROUTES["chat"].parse(body + b',"x":' + nested(b"[", 100) + b"}", "id", {}, refuses_unknown=False)
    with pytest.raises(RecursionError):
        ROUTES["chat"].parse(body + b',"x":' + nested(b"[", 100_000) + b"}", "id", {}, refuses_unknown=False)

"""Well-formed inputs of every parser, which mutate.py makes hostile: what the scripted engine writes, and other shapes
of vLLM's answers (tools, thinking, log-probabilities, errors); requests with every kind of field; lines of a spool."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path

import msgspec

from headway.engines.scripted.formats import ChatFormat, CompletionFormat, ScriptedAnswer
from headway.engines.scripted.messages import MessagesFormat
from headway.ledger.entries import Entry
from headway.ledger.spool import Spool

MODEL = "m"
TIMES: dict[str, float | None] = {"time_to_first_token_ms": 96.4, "generation_time_ms": 229.8, "mean_itl_ms": None}
SPOOL_BYTES = 2**30


def _answer(
    tokens: int, *, stop: str | None = None, continuous: bool = True, ids: bool = False, prompt: int = 7
) -> ScriptedAnswer:
    return ScriptedAnswer(
        "chatcmpl-1",
        "1",
        1,
        MODEL,
        prompt,
        tokens,
        stop,
        include_usage=True,
        continuous_usage=continuous,
        returns_ids=ids,
    )


def _without_chunks(data: bytes) -> bytes:
    """The body of which `data` is the chunked form."""
    parts = []
    while data:
        size, _, data = data.partition(b"\r\n")
        parts.append(data[: int(size, 16)])
        data = data[int(size, 16) + 2 :]
    return b"".join(parts)


def _stream(form: ChatFormat | CompletionFormat | MessagesFormat, tokens: int) -> bytes:
    return _without_chunks(b"".join(form.token(number + 1) for number in range(tokens)) + form.closing(TIMES))


def _events(*payloads: bytes) -> bytes:
    return b"".join(b"data: " + payload + b"\n\n" for payload in payloads)


def _named_events(*payloads: bytes) -> bytes:
    kinds = [msgspec.json.decode(payload)["type"].encode() for payload in payloads]
    return b"".join(b"event: %b\ndata: %b\n\n" % (kind, payload) for kind, payload in zip(kinds, payloads, strict=True))


_ID = b'{"id":"c","object":"chat.completion.chunk","created":1,"model":"m"'
_DONE = b"data: [DONE]\n\n"


def _tail(output_tokens: int) -> bytes:
    usage = b'"usage":{"prompt_tokens":7,"total_tokens":%d,"completion_tokens":%d}' % (7 + output_tokens, output_tokens)
    return _ID + b',"choices":[],' + usage + b"}"


def _token(choice: bytes, count: int) -> bytes:
    counts = b'"prompt_tokens":7,"total_tokens":%d,"completion_tokens":%d' % (7 + count, count)
    return _ID + b',"choices":[' + choice + b'],"usage":{' + counts + b"}}"


OPENAI_STREAMS = (
    *(_stream(ChatFormat(_answer(tokens)), tokens) for tokens in (1, 2, 3, 8)),
    _stream(ChatFormat(_answer(2, continuous=False)), 2),
    _stream(ChatFormat(_answer(2, stop="the")), 2),
    *(_stream(CompletionFormat(_answer(tokens)), tokens) for tokens in (1, 3)),
    *(_stream(form(_answer(tokens, ids=True)), tokens) for tokens in (2, 8) for form in (ChatFormat, CompletionFormat)),
    # Two choices, by turns.
    _events(
        *(
            _token(b'{"index":%d,"delta":{"content":"x"},"logprobs":null,"finish_reason":null}' % index, count)
            for count in (1, 2)
            for index in (0, 1)
        ),
        _tail(4),
    )
    + _DONE,
    # A keep-alive comment, thinking, a tool call, and cached prompt tokens.
    b": keep-alive\n\n"
    + _events(
        _token(b'{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}', 0),
        _token(b'{"index":0,"delta":{"reasoning":"hm"},"finish_reason":null}', 1),
        _token(
            b'{"index":0,"delta":{"tool_calls":[{"id":"t","type":"function","index":0,"function":{"name":"f",'
            b'"arguments":"{\\"a\\": 1}"}}]},"finish_reason":"tool_calls"}',
            2,
        ),
        _ID + b',"choices":[],"usage":{"prompt_tokens":7,"total_tokens":9,"completion_tokens":2,'
        b'"prompt_tokens_details":{"cached_tokens":4}},"metrics":{"generation_time_ms":12.5}}',
    )
    + _DONE,
    # Log-probabilities, and text with what the meter looks for.
    _events(
        _token(b'{"index":0,"delta":{"content":""},"finish_reason":null}', 0),
        _token(
            b'{"index":0,"delta":{"content":",\\"usage\\":{ }} [DONE]\\n\\n"},"logprobs":{"content":[{"token":"a",'
            b'"logprob":-0.5,"bytes":[97],"top_logprobs":[]}]},"finish_reason":null}',
            1,
        ),
        _tail(1),
    )
    + _DONE,
    # An engine that fails in the middle.
    _events(
        _token(b'{"index":0,"delta":{"content":"x"},"finish_reason":null}', 1),
        b'{"error":{"message":"out of memory","type":"X","param":null,"code":500}}',
    )
    + _DONE,
)

# The beginning of a chat that can go on elsewhere, of which two tokens were read, and what the next engine may say.
BEGUN = b"".join(event + b"\n\n" for event in _stream(ChatFormat(_answer(9, ids=True)), 9).split(b"\n\n")[:3])
NEXT_STREAMS = (
    *(_stream(CompletionFormat(_answer(tokens, ids=True, prompt=9)), tokens) for tokens in (1, 3, 7)),
    _stream(CompletionFormat(_answer(2, ids=True, prompt=9, stop="the")), 2),
    _stream(CompletionFormat(_answer(3, prompt=9)), 3),
)

OPENAI_WHOLE = (
    *(ChatFormat(_answer(tokens)).whole(TIMES) for tokens in (1, 40)),
    CompletionFormat(_answer(3, stop="the")).whole(TIMES),
    b'{"choices":[{"index":0,"message":{"content":"a"}},{"index":1,"message":{"content":"b"}}],"usage":{"prompt_tokens":'
    b'3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}},"metrics":{"generation_time_ms":7}}',
    b'{"error":{"message":"no","type":"BadRequestError","param":null,"code":400}}',
)

_START = (
    b'{"type":"message_start","message":{"id":"x","type":"message","role":"assistant","content":[],"model":"m",'
    b'"stop_reason":null,"usage":{"input_tokens":9,"output_tokens":0,"cache_read_input_tokens":3}}}'
)
_STOP = (
    b'{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null},'
    b'"usage":{"input_tokens":9,"output_tokens":4}}',
    b'{"type":"message_stop"}',
)

ANTHROPIC_STREAMS = (
    *(_stream(MessagesFormat(_answer(tokens)), tokens) for tokens in (1, 2, 8)),
    _stream(MessagesFormat(_answer(2, stop="the")), 2),
    # Thinking with its signature, and a ping.
    _named_events(
        _START,
        b'{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":"","signature":""}}',
        b'{"type":"ping"}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"thinking_delta","thinking":"hm"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"signature_delta","signature":"s"}}',
        b'{"type":"content_block_stop","index":0}',
        *_STOP,
    ),
    # A tool call.
    _named_events(
        _START,
        b'{"type":"content_block_start","index":0,"content_block":{"type":"tool_use","id":"t","name":"f","input":{}}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":"{\\"a\\":"}}',
        b'{"type":"content_block_delta","index":0,"delta":{"type":"input_json_delta","partial_json":" 1}"}}',
        b'{"type":"content_block_stop","index":0}',
        *_STOP,
    ),
    # An engine that fails in the middle.
    _named_events(_START, b'{"type":"error","error":{"type":"overloaded_error","message":"no room"}}'),
)

ANTHROPIC_WHOLE = (
    *(MessagesFormat(_answer(tokens)).whole(TIMES) for tokens in (1, 9)),
    b'{"input_tokens":21,"context_management":{"original_input_tokens":21}}',
    b'{"type":"error","error":{"type":"invalid_request_error","message":"no"}}',
)

_SCHEMA = (
    b'{"type":"object","properties":{"a":{"type":"string","pattern":"^[a-z]{1,8}$","maxLength":8}},"required":["a"]}'
)

# A PNG of one pixel.
_IMAGE = b"iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGMImHABAALkAbFAMcGbAAAAAElFTkSuQmCC"

CHATS = (
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_tokens":5}',
    b'{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"hi"}]},'
    b'{"role":"assistant","content":null,"tool_calls":[{"id":"t","type":"function","function":{"name":"f","arguments":'
    b'"{}"}}]},{"role":"tool","tool_call_id":"t","content":"1"}],"stream":true,"stream_options":{"include_usage":true,'
    b'"continuous_usage_stats":true},"n":2,"service_tier":"fast","stop":["a","b"],"logit_bias":{"5":-1.5}}',
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"max_completion_tokens":9,"temperature":0.5,"top_p":1,'
    b'"seed":-3,"logprobs":true,"top_logprobs":3,"frequency_penalty":0.1,"presence_penalty":-0.1,"user":"u",'
    b'"metadata":{"a":"b"},"store":false,"prompt_cache_key":"k","reasoning_effort":"low","parallel_tool_calls":true}',
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"tools":[{"type":"function","function":{"name":"f",'
    b'"description":"d","strict":true,"parameters":' + _SCHEMA + b'}}],"tool_choice":{"type":"function","function":'
    b'{"name":"f"}},"response_format":{"type":"json_schema","json_schema":{"name":"j","schema":' + _SCHEMA + b"}}}",
    b'{"model":"m","messages":[{"role":"user","content":"hi"}],"structured_outputs":{"json":' + _SCHEMA + b',"regex":'
    b'"(ab){1,9}","choice":["x"]},"top_k":-1,"min_p":0.1,"repetition_penalty":1.5,"min_tokens":1,"ignore_eos":true,'
    b'"stop_token_ids":[1,2],"skip_special_tokens":false,"return_tokens_as_token_ids":true}',
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"hi","cache_control":{"type":"x"}}]},'
    b'{"role":"assistant","content":"c","reasoning_content":"r","audio":null,"provider_specific_fields":{"a":[1]},'
    b'"tool_calls":[{"index":0,"id":"t","type":"function","function":{"name":"f","arguments":"{}","x":1}}]}],'
    b'"guided_regex":"a+","modalities":["text"],"verbosity":"low","chat_template_kwargs":{"enable_thinking":false}}',
    b'{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,'
    + _IMAGE
    + b'","detail":"low"}},{"type":"text","text":"hi"}]}],"max_tokens":5}',
)

COMPLETIONS = (
    b'{"model":"m","prompt":"hi","max_tokens":5}',
    b'{"model":"m","prompt":[1,2,3],"echo":true,"logprobs":2,"stream":true,"stream_options":{"include_usage":true},'
    b'"stop":"x","n":3,"seed":1,"service_tier":"flex"}',
    b'{"model":"m","prompt":"hi","suffix":null,"response_format":{"type":"json_object"},"structured_outputs":'
    b'{"regex":"[ab]+","json":' + _SCHEMA + b'},"logit_bias":{"1":100}}',
)

MESSAGES = (
    b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}]}',
    b'{"model":"m","max_tokens":5,"system":[{"type":"text","text":"s","cache_control":{"type":"ephemeral"}}],"messages":'
    b'[{"role":"user","content":[{"type":"text","text":"hi"},{"type":"tool_result","tool_use_id":"t","content":"1",'
    b'"is_error":false}]},{"role":"assistant","content":[{"type":"tool_use","id":"t","name":"f","input":{"a":1}},'
    b'{"type":"thinking","thinking":"hm","signature":"s"}]}],"stream":true,"speed":"fast"}',
    b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":'
    + _SCHEMA
    + b',"description":"d"}],"tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true},"thinking":'
    b'{"type":"enabled","budget_tokens":1024},"output_config":{"effort":"low","format":{"type":"json_schema","schema":'
    + _SCHEMA
    + b'}},"stop_sequences":["x"],"temperature":1,"top_k":5,"top_p":0.5,"metadata":{"a":"u"},"service_tier":"auto"}',
    b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64",'
    b'"media_type":"image/png","data":"' + _IMAGE + b'"}}]}]}',
)

PROMPTS = (
    b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
    b'{"model":"m","system":"s","messages":[{"role":"user","content":"hi"}],"tools":[{"name":"f","input_schema":'
    + _SCHEMA
    + b'}],"tool_choice":{"type":"auto"},"thinking":{"type":"disabled"}}',
)
EMBEDDINGS = (
    b'{"model":"m","input":"hi","encoding_format":"base64"}',
    b'{"model":"m","input":["hi","a \\"b\\" \\u00e9"],"dimensions":8,"user":"u"}',
    b'{"model":"m","input":[[1,2,3],[4]],"encoding_format":"float"}',
)
RESPONSES = (
    b'{"model":"m","input":"hi","stream":true,"max_output_tokens":5,"service_tier":"fast"}',
    b'{"model":"m","instructions":"s","store":false,"prompt_cache_key":"k","include":["reasoning.encrypted_content"],'
    b'"reasoning":{"effort":"low","summary":"auto"},"text":{"format":{"type":"json_schema","name":"n","schema":'
    + _SCHEMA
    + b'}},"input":[{"role":"user","content":[{"type":"input_text","text":"hi"}]},{"type":"reasoning","id":"r",'
    b'"summary":[]},{"type":"function_call","call_id":"c","name":"f","arguments":"{}","id":"i","status":"completed"},'
    b'{"type":"function_call_output","call_id":"c","output":"42"}]}',
    b'{"model":"m","input":[{"type":"message","role":"assistant","content":[{"type":"output_text","text":"a",'
    b'"annotations":[]}]}],"tools":[{"type":"function","name":"f","parameters":'
    + _SCHEMA
    + b'},{"type":"namespace","name":"n","description":"d","tools":[{"type":"function","name":"g"}]},'
    b'{"type":"custom","name":"h","format":{"type":"text"}},{"type":"web_search"}],"tool_choice":"auto"}',
)


@cache
def spool_lines(prefix: str, calls: int) -> tuple[bytes, ...]:
    """The lines that a spool writes for so many calls: reserved, seen, served and released; one is left open."""
    with tempfile.TemporaryDirectory() as folder:
        spool = Spool(Path(folder), SPOOL_BYTES)
        try:
            for number in range(calls):
                reserved = Entry(
                    call_id=f"{prefix}{number:04d}",
                    attempt=1,
                    kind="reserved",
                    at_us=1_800_000_000_000_000 + number,
                    day="2027-01-15",
                    gateway=spool.gateway,
                    key="key-1",
                    model=MODEL,
                    replica="http://127.0.0.1:1",
                    tier_asked="fast",
                    tier="standard",
                    input_price=1_000_000,
                    output_price=10_000_000,
                    multiple_milli=1_000,
                    amount=5_000,
                )
                spool.reserve(reserved)
                spool.seen([(reserved.call_id, 1, reserved.replica, 7, number)])
                if number:
                    spool.close_call(reserved.lost(1, reserved.replica, (7, number), reserved.at_us + 1))
            return tuple(
                line + b"\n"
                for segment in sorted(Path(folder).glob("*.jsonl"))
                for line in segment.read_bytes().splitlines()
            )
        finally:
            spool.stop()

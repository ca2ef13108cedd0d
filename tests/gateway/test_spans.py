"""Spans of calls, as a collector gets them: received over HTTP and read with OpenTelemetry's own protobuf types."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import openai
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SentSpan
from opentelemetry.proto.trace.v1.trace_pb2 import Status
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes
from opentelemetry.semconv.attributes import error_attributes, http_attributes, server_attributes

from headway.engines.scripted import Faults, Script, running
from headway.observe import otel_spans, span_attributes
from tests.api.test_trace_context import PARENT, sent_headers
from tests.gateway.test_books import ASK, SECRET, desk
from tests.running import MODEL, Running, config_for, post, running_gateway

QUICK = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.002),))
CHAT = b'{"model":"scripted","messages":[{"role":"user","content":"hi"}],"stream":true,"max_tokens":20}'
FAST = {"name": "fast", "floor_tps": 20.0, "price_multiple": 2.0}
CURVE: list[list[float]] = [[1, 500.0], [2, 480.0], [8, 300.0]]


class Collector:
    """What was received."""

    def __init__(self) -> None:
        self.url = ""
        self.requests: list[ExportTraceServiceRequest] = []
        self.paths: set[str] = set()
        self.answers = threading.Event()  # it answers only when this is set
        self.answers.set()

    def spans(self) -> list[SentSpan]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def attributes(self) -> list[dict[str, Any]]:
        return [attributes_of(span) for span in self.spans()]


def attributes_of(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@contextmanager
def collector() -> Iterator[Collector]:
    found = Collector()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            found.answers.wait()
            found.paths.add(self.path)
            found.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    found.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield found
    finally:
        found.answers.set()
        server.shutdown()
        thread.join()
        server.server_close()


async def ask(here: Running, body: bytes, *headers: bytes, path: str = "/v1/chat/completions") -> bytes:
    return await here.raw(post(path, body, *headers))


def test_the_names_are_those_of_the_conventions() -> None:
    known = {
        value
        for module in (gen_ai_attributes, error_attributes, http_attributes, server_attributes)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    }
    own = {value for name, value in vars(span_attributes).items() if name.isupper() and isinstance(value, str)}
    assert own - {span_attributes.CHAT} <= known
    operations = {one.value for one in gen_ai_attributes.GenAiOperationNameValues}
    assert {*span_attributes.OPERATIONS.values(), span_attributes.CHAT} - operations == {"count_tokens"}


@pytest.mark.anyio
async def test_a_call_has_a_span_below_the_callers_and_above_the_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
    sent = sent_headers(monkeypatch)
    with collector() as collected:
        async with running(QUICK) as engine:
            config = config_for([engine], express=[FAST], curve=CURVE, otlp_endpoint=collected.url)
            async with running_gateway(config) as here:
                body = CHAT[:-1] + b',"service_tier":"fast","prompt_cache_key":"conversation-7"}'
                await ask(here, body, b"traceparent: " + PARENT.encode(), b"tracestate: vendor=1")
        [headers] = sent
        [span] = collected.spans()
        assert collected.paths == {"/v1/traces"}
        resource = attributes_of(collected.requests[0].resource_spans[0].resource)
    assert resource["service.name"] == "headway"
    assert resource["deployment.environment.name"] == "test"
    assert (span.name, span.kind) == (f"chat {MODEL}", SentSpan.SPAN_KIND_CLIENT)
    assert span.trace_id.hex() == PARENT.split("-")[1]
    assert span.parent_span_id.hex() == PARENT.split("-")[2]
    assert headers["traceparent"] == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
    assert headers["tracestate"] == "vendor=1"
    assert span.status.code == Status.STATUS_CODE_UNSET
    found = attributes_of(span)
    took_s = (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9
    assert 0 < found.pop("gen_ai.response.time_to_first_chunk") < took_s
    assert found.pop("headway.tokens_per_second") > 20
    assert found.pop("headway.seat_s") > 0
    assert found.pop("headway.held_s") >= 0
    assert found.pop("gen_ai.usage.input_tokens") > 0
    assert found.pop("headway.call_id")
    host, _, port = engine.url.removeprefix("http://").partition(":")
    assert found == {
        "gen_ai.operation.name": "chat",
        "gen_ai.provider.name": "headway",
        "gen_ai.request.model": MODEL,
        "gen_ai.response.model": MODEL,
        "gen_ai.request.stream": True,
        "gen_ai.request.max_tokens": 20,
        "gen_ai.conversation.id": "conversation-7",
        "gen_ai.usage.cache_read.input_tokens": 0,
        "gen_ai.usage.output_tokens": 20,
        "server.address": host,
        "server.port": int(port),
        "headway.tier_asked": "fast",
        "headway.tier": "fast",
        "headway.floor": 20.0,
        "headway.kept": True,
        "headway.replica": engine.url,
        "headway.boardings": 1,
        "headway.outcome": "finished",
    }


@pytest.mark.anyio
async def test_refused_and_failed_calls_have_spans_too(tmp_path: Path) -> None:
    with collector() as collected:
        async with running(QUICK) as engine, desk(tmp_path, [engine], otlp_endpoint=collected.url) as at:
            key = b"authorization: Bearer " + SECRET.encode()
            await ask(at.here, CHAT)
            await ask(at.here, b"{", key, b"traceparent: " + PARENT.encode(), path="/v1/messages")
            with pytest.raises(openai.BadRequestError):
                await at.here.openai.chat.completions.create(model=MODEL, messages=ASK, max_tokens=9_000)
            engine.faults = Faults(die_after_tokens=2, times=1)
            await ask(at.here, CHAT[:-1] + b',"seed":1}', key)  # which cannot go on at another engine
        spans = collected.spans()
        found = collected.attributes()
    assert [(one["headway.outcome"], one["error.type"]) for one in found] == [
        ("refused", "unauthorized"),
        ("refused", "invalid_request"),
        ("error", "engine_400"),
        ("failed", "engine_lost"),
    ]
    assert {span.status.code for span in spans} == {Status.STATUS_CODE_ERROR}
    assert [one.get("http.response.status_code") for one in found] == [401, 400, None, None]
    assert [one.get("headway.key") for one in found] == [None, "key-test", "key-test", "key-test"]
    assert spans[1].trace_id.hex() == PARENT.split("-")[1]
    assert not spans[0].parent_span_id
    assert SECRET not in str(collected.requests)


@pytest.mark.anyio
async def test_a_collector_that_does_not_answer_delays_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "8")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "4")
    monkeypatch.setattr(otel_spans, "STOP_S", 0.05)
    with collector() as collected:
        collected.answers.clear()
        async with running(QUICK) as engine, running_gateway(config_for([engine], otlp_endpoint=collected.url)) as here:
            for _ in range(30):
                assert b"[DONE]" in await ask(here, CHAT.replace(b"20", b"2"))
        assert collected.requests == []
        collected.answers.set()
        for thread in threading.enumerate():
            if thread.name == "last spans":
                thread.join(20)
        assert 8 <= len(collected.spans()) <= 12  # those in the queue, and those that were being sent


def test_nothing_of_opentelemetry_is_imported_without_the_setting() -> None:
    program = """
import sys
from headway.config import Config
from headway import run
from headway.observe.opening import open_observer
open_observer(None, None, "1")
assert not [name for name in sys.modules if name.startswith("opentelemetry")]
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_without_the_extra_the_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["opentelemetry"] = None
from headway.errors import SetupError
from headway.observe.opening import open_observer
try:
    open_observer(None, "http://127.0.0.1:4318", "1")
except SetupError as error:
    print(error)
"""
    shown = subprocess.run([sys.executable, "-c", program], check=True, timeout=60, capture_output=True, text=True)
    assert "pip install 'headway[otel]'" in shown.stdout

"""Spans of calls, sent by OTLP over HTTP with OpenTelemetry's own SDK. Imported only if calls are traced.

A call's span is a child of the caller's, if its request has a `traceparent`, and the parent of the engine's. Spans that
have ended wait in a queue, whose bound the SDK keeps (OTEL_BSP_MAX_QUEUE_SIZE, 2048): one thread sends them in batches,
and what does not fit is dropped. The SDK's other variables, OTEL_..., hold too: sampling, headers, the resource.
"""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)
from opentelemetry.trace import Span as ApiSpan

from headway.observe.base import EndedCall, RefusedCall
from headway.observe.span_attributes import asked_model, at_begin, at_end, of_refused, span_name
from headway.wire import Request, Trace

STOP_S = 2.0  # to send the last spans
NOBODY = Context()


class OtelTracer:
    """Implements base.Tracer. `endpoint` is the base URL of a collector, `version` that of Headway."""

    def __init__(self, endpoint: str, version: str) -> None:
        ours = Resource.create({"service.name": "headway", "service.version": version})
        # At the end of the process `stop` waits, and not for long; the SDK's own hook would.
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{endpoint}/v1/traces")))
        self._tracer = self._provider.get_tracer("headway", version)

    def begin(self, request: Request) -> OtelSpan:
        name = span_name(request.path, asked_model(request))
        parent, attributes = _parent(request.trace), at_begin(request)
        span = self._tracer.start_span(name, parent, SpanKind.CLIENT, attributes)
        return OtelSpan(span, request.trace.state)

    def refused(self, refused: RefusedCall) -> None:
        name = span_name(refused.path, asked_model(refused.request) if refused.request is not None else "")
        span = self._tracer.start_span(name, _parent(refused.trace), SpanKind.CLIENT, of_refused(refused))
        span.set_status(StatusCode.ERROR)
        span.end()

    async def stop(self) -> None:
        loop, done = asyncio.get_running_loop(), asyncio.Event()

        def shut_down() -> None:
            self._provider.shutdown()
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(done.set)

        # A daemon: while the collector is away this takes half a minute.
        threading.Thread(target=shut_down, name="last spans", daemon=True).start()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await done.wait()


class OtelSpan:
    """Implements base.Span."""

    def __init__(self, span: ApiSpan, state: str) -> None:
        self._span = span
        self._state = state

    @property
    def trace(self) -> Trace:
        own = self._span.get_span_context()
        return Trace(f"00-{own.trace_id:032x}-{own.span_id:016x}-{own.trace_flags:02x}", self._state)

    def end(self, ended: EndedCall) -> None:
        if self._span.is_recording():
            self._span.set_attributes(at_end(ended))
            if ended.error:
                self._span.set_status(StatusCode.ERROR)
        self._span.end()


def _parent(trace: Trace) -> Context:
    """`trace` is valid (api/trace_context.py)."""
    if not trace.parent:
        return NOBODY
    _, trace_id, span_id, flags = trace.parent.split("-")
    # Its state goes to the engine unread: the SDK logs what a client writes there if it is not valid.
    context = SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=TraceFlags(int(flags, 16)))
    return set_span_in_context(NonRecordingSpan(context), NOBODY)

"""Opens the access log and the tracer that headway.toml asks for."""

from __future__ import annotations

import importlib
from pathlib import Path

from headway.errors import SetupError
from headway.observe.access_log import AccessLog
from headway.observe.base import Observer, Tracer

STDOUT = "-"


def open_observer(access_log: str | None, otlp_endpoint: str | None, version: str) -> Observer:
    """`access_log` is a path, or "-" for standard output; `version` is that of Headway. Raises SetupError."""
    log = None
    if access_log is not None:
        log = AccessLog(Path(access_log) if access_log != STDOUT else None)
    return Observer(log, _open_tracer(otlp_endpoint, version) if otlp_endpoint is not None else None)


def _open_tracer(endpoint: str, version: str) -> Tracer:
    try:
        module = importlib.import_module("headway.observe.otel_spans")
    except ImportError:
        raise SetupError("`otlp_endpoint` needs OpenTelemetry: pip install 'headway[otel]'") from None
    tracer: Tracer = module.OtelTracer(endpoint, version)
    return tracer

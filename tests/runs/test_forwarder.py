"""The program that only copies bytes, beside which runs/tax.sh measures the gateway."""

from __future__ import annotations

import sys

import uvloop

from headway.local.engine_process import free_port
from runs.measure.streams import at_once, chat_request, process, scripted


def test_a_stream_passes_whole() -> None:
    engine_port, port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    forwarder = [sys.executable, "-m", "runs.gateway.forwarder", str(port), str(engine_port)]
    with (
        scripted(engine_port, model="m", first_token_ms=1, step_ms="1:1", seats=4),
        process(forwarder, f"{url}/health"),
    ):
        streams, _ = uvloop.run(at_once(url, chat_request("m", 20), 4))
    assert [(stream.complete, stream.tokens) for stream in streams] == [(True, 20)] * 4

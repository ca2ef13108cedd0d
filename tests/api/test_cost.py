"""What a request may cost the gateway, whatever it holds: CPU and memory, without a key and with one.

The gateway runs in a thread of its own. Its CPU time is that thread's, so the time that other work on the machine takes
does not count. Other work still slows the core down, by up to a factor of two: it shares its caches and its other
hardware thread. So a known amount of work is timed beside each request, the request's time is divided by how much slower
than on a quiet core that was, and the lowest of several means is taken.
Memory is the highest that Python allocated at any time during the request, in all threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import pytest
import uvloop

from headway.api import check_time
from headway.config import Config
from headway.core.rate_limit import TokenLimit
from headway.deciding import decide_here
from headway.run import make_auto, make_gateway, make_gateway_server
from tests.image_files import data_url, png

KEY = b"hw-right"
MB = 1_000_000


@dataclass
class Door:
    """A running gateway, and the clock of its thread."""

    port: int
    thread: int

    def cpu_s(self) -> float:
        return time.clock_gettime(time.pthread_getcpuclockid(self.thread))

    def ask(self, request: bytes) -> bytes:
        """Send a request, read until the gateway closes the connection. Returns the beginning of the answer."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as visitor:
            answer = b""
            with contextlib.suppress(ConnectionError):  # it was cut off, and an answer may have come
                visitor.sendall(request)
            with contextlib.suppress(ConnectionError):
                while piece := visitor.recv(65536):
                    answer = answer or piece
            return answer


@pytest.fixture(scope="module", autouse=True)
def _each_request_is_read() -> Iterator[None]:
    """The time that a key's requests may take in a minute is tested elsewhere. Here each of them is measured."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(check_time, "LIMIT", TokenLimit(input_tpm=10**12))
        yield


@pytest.fixture(scope="module")
def door() -> Iterator[Door]:
    replica = {"url": "http://127.0.0.1:9", "seats": 1}  # nobody is there: no request of this module needs an engine
    gateway_table = {"port": 0, "key_hashes": [hashlib.sha256(KEY).hexdigest()]}
    model = {"name": "m", "tiers": [{"name": "standard"}], "replicas": [replica]}
    config = Config.model_validate({"gateway": gateway_table, "models": [model]})
    listening = threading.Event()
    stops: list[Callable[[], object]] = []
    ports: list[int] = []

    def on_listening(port: int) -> None:
        ports.append(port)
        listening.set()

    async def serve() -> None:
        gateway = make_gateway(config, decide_here(config))
        server, _ = make_gateway_server(config, gateway, make_auto(config, gateway))
        server.on_listening = on_listening
        stops.append(partial(asyncio.get_running_loop().call_soon_threadsafe, server.stop))
        await server.serve()

    thread = threading.Thread(target=lambda: uvloop.run(serve()))
    thread.start()
    assert listening.wait(20)
    assert thread.ident is not None
    yield Door(ports[0], thread.ident)
    stops[0]()
    thread.join(20)


def post(body: bytes, *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    head = [b"POST " + path + b" HTTP/1.1", b"host: x", b"connection: close", *headers]
    return b"\r\n".join([*head, b"content-length: %d" % len(body), b"", body])


KNOWN_WORK = b"[" + b",".join([b"{}"] * 33_000) + b"]"
KNOWN_WORK_S = 0.0018  # on a quiet core


def slowdown() -> float:
    """How much slower than a quiet core this one is now; at least 1."""
    times = []
    for _ in range(3):
        before = time.thread_time()
        msgspec.json.decode(KNOWN_WORK)
        times.append(time.thread_time() - before)
    return max(1.0, min(times) / KNOWN_WORK_S)


def cpu_s(door: Door, request: bytes, times: int) -> float:
    """CPU time of one request on a quiet core: the lowest of five means."""
    means = []
    for _ in range(5):
        slower = slowdown()
        before = door.cpu_s()
        for _ in range(times):
            door.ask(request)
        means.append((door.cpu_s() - before) / times / min(slower, slowdown()))
    return min(means)


def peak_bytes(door: Door, request: bytes) -> int:
    """The least of a few, because the gateway also does other things."""
    peaks = []
    tracemalloc.start()
    try:
        for _ in range(5):
            before, _ = tracemalloc.get_traced_memory()
            tracemalloc.reset_peak()
            door.ask(request)
            peaks.append(tracemalloc.get_traced_memory()[1] - before)
    finally:
        tracemalloc.stop()
    return min(peaks)


GET = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n"
WRONG = b"x-api-key: hw-wrong"
WITHOUT_A_KEY = {
    "plain": GET + b"connection: close\r\n\r\n",
    "endless header": GET + b"x: " + b"a" * MB,
    "endless path": b"GET /" + b"a" * MB,
    "endless empty lines": b"\r\n" * (MB // 2),
    "many headers": GET + b"x: y\r\n" * 20_000 + b"\r\n",
    "as large a head as allowed": GET + b"connection: close\r\n" + b"".join(b"x-%d: %b\r\n" % (n, b"a" * 520) for n in range(120)) + b"\r\n",
    "huge body": post(b" " * 8 * MB, WRONG),
    "huge chunked body": GET.replace(b"GET", b"POST")
    + b"transfer-encoding: chunked\r\n\r\n"
    + b"2000\r\n%b\r\n" % (b" " * 0x2000) * 500,
    "tiny chunks": GET.replace(b"GET", b"POST") + b"transfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 100_000,
    "deep JSON": post(b"[" * MB),
    "nonsense": b"\x16\x03\x01 nonsense\r\n\r\n" * 1000,
}  # fmt: skip


@pytest.mark.parametrize("what", WITHOUT_A_KEY)
def test_a_request_without_a_key_costs_little(door: Door, what: str) -> None:
    request = WITHOUT_A_KEY[what]
    assert cpu_s(door, request, times=40) <= 0.002
    assert peak_bytes(door, request) <= 256 * 1024


def test_requests_sent_ahead_cost_no_more_than_others(door: Door) -> None:
    ahead = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n" * 2000 + WITHOUT_A_KEY["plain"]
    before = door.cpu_s()
    assert door.ask(ahead).startswith(b"HTTP/1.1 200")
    assert (door.cpu_s() - before) / 2000 <= 0.002
    assert peak_bytes(door, ahead) <= 256 * 1024


def with_field(field: str, value: bytes) -> bytes:
    """A body with a field that may be refused. No such model: the request is read in full and then answered with 404."""
    return b'{"model":"none","messages":[{"role":"user","content":"hi"}],"%b":%b}' % (field.encode(), value)


def with_content(value: bytes) -> bytes:
    return b'{"model":"none","messages":[{"role":"user","content":%b}]}' % value


def listed(item: bytes, size: int = MB) -> bytes:
    return b"[" + b",".join([item] * (size // (len(item) + 1))) + b"]"


PATHS = {"messages:": b"/v1/messages", "completions:": b"/v1/completions"}
ENTRIES = b"{" + b",".join(b'"%x":0' % n for n in range(MB // 9)) + b"}"
MESSAGE = b'{"role":"user"}'
TEXTS = {
    "English": with_content(msgspec.json.encode("The quick brown fox. " * (MB // 21))),
    "with escapes": with_content(msgspec.json.encode('"\\\n' * (MB // 6))),
    "a long conversation": b'{"model":"none","messages":'
    + listed(b'{"role":"user","content":"%b"}' % (b"word " * 200))
    + b"}",
    "an image": with_content(
        msgspec.json.encode([{"type": "image_url", "image_url": {"url": data_url(png(9, 9, data=bytes(MB * 3 // 4)))}}])
    ),
}
# What is ignored is left out in a copy.
HINTED_TEXTS = {
    "JSON in a text, and a hint": with_content(msgspec.json.encode('{"a":1,"b":{}}' * (MB // 20))).replace(
        b"{", b'{"store":true,', 1
    ),
    "a long conversation with hints": b'{"model":"none","store":true,"messages":'
    + listed(b'{"role":"user","content":"%b","cache_control":{"type":"ephemeral"}}' % (b"word " * 200))
    + b"}",
}
BODIES = {
    # Text of other scripts is decoded to two or four bytes per character, and back: about 4.3 and 7 times its bytes.
    "Chinese": with_content(msgspec.json.encode("快速的棕色狐狸" * (MB // 21))),
    "one emoji in a text": with_content('"🚌'.encode() + b"a" * MB + b'"'),
    "deep JSON": b"[" * MB,
    "empty lists": with_field("x", listed(b"[]")),
    "empty lists as messages": with_field("messages", listed(b"[]")),
    "tiny messages": b'{"model":"none","messages":' + listed(MESSAGE) + b"}",
    "tiny parts": with_content(listed(b'{"type":"text"}')),
    "tiny tool calls": b'{"model":"none","messages":[{"role":"assistant","tool_calls":%b}]}' % listed(b"0"),
    "empty tool calls": b'{"model":"none","messages":[{"role":"assistant","tool_calls":%b}]}' % listed(b"{}"),
    "tiny tools": with_field("tools", listed(b'{"type":"function","function":{"name":""}}')),
    "tiny stops": with_field("stop", listed(b'"ab"')),
    "token ids": with_field("stop_token_ids", listed(b"1000")),
    "many biases": with_field("logit_bias", ENTRIES),
    "much metadata": with_field("metadata", ENTRIES.replace(b":0", b':""')),
    "a wide tool choice": with_field("tool_choice", ENTRIES),
    "choices": with_field("structured_outputs", b'{"choice":%b}' % listed(b'"ab"')),
    "annotations": b'{"model":"none","messages":[{"role":"assistant","annotations":%b}]}' % listed(b"[]"),
    "messages: tiny blocks": with_content(listed(b'{"type":"text"}')).replace(b"{", b'{"max_tokens":1,', 1),
    "messages: much metadata": with_field("metadata", ENTRIES.replace(b":0", b':""')).replace(b"{", b'{"max_tokens":1,', 1),
    "completions: token ids": b'{"model":"none","prompt":%b}' % listed(b"1000"),
    "unknown": with_field("unknown", ENTRIES),
    "much that is unknown": with_field("unknown", b"1," + ENTRIES[1:-1]),
    "much that is unknown in a message": b'{"model":"none","messages":[{"role":"user",%b]}' % ENTRIES[1:],
    "unknown in each message": b'{"model":"none","messages":' + listed(b'{"role":"user","x":1}') + b"}",
    "unknown in longer messages": b'{"model":"none","messages":'
    + listed(b'{"role":"user","content":"%b","x":1}' % (b"word " * 8)) + b"}",
    "unknown in tool calls": b'{"model":"none","messages":[{"role":"assistant","tool_calls":%b}]}'
    % listed(b'{"function":{"name":"f"},"x":1}'),
    "messages: unknown in blocks": with_content(listed(b'{"type":"text","text":"","x":1}')).replace(
        b"{", b'{"max_tokens":1,', 1
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TEXTS | HINTED_TEXTS | BODIES)
def test_a_request_with_a_key_costs_no_more_than_its_bytes_allow(door: Door, what: str) -> None:
    body = (TEXTS | HINTED_TEXTS | BODIES)[what]
    path = next((path for name, path in PATHS.items() if what.startswith(name)), b"/v1/chat/completions")
    request = post(body, b"x-api-key: " + KEY, path=path)
    answer = door.ask(request)
    assert answer.startswith(b"HTTP/1.1 40"), answer
    assert cpu_s(door, request, times=2) <= 0.050 * len(body) / MB
    assert peak_bytes(door, request) <= (4 if what in TEXTS else 5 if what in HINTED_TEXTS else 16) * len(body)

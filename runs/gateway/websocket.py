"""What a turn of an agent costs over HTTP and over the WebSocket of the Responses API. See runs/websocket.sh.

A conversation has twenty turns: a long first message, then results of a tool, each answered with the next call. Ways
take turns, so that all of them meet the same machine. Overhead is the client's time from its request to the last event,
minus the engine's from the request's first byte to the answer's last. The scripted engine records both on the clock of
the client, so overhead is known by its place: before the engine (client, gateway, both connections) and after it.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console
from rich.progress import track
from rich.table import Table
from websockets.asyncio.client import ClientConnection, connect

from headway.api.responses import RESPONSE_PREFIX
from headway.bench.load import quantile
from headway.engines.scripted import RequestRecord
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.local.engine_env import MODEL_NAME
from headway.local.engine_process import free_port
from runs.measure.engines import TOOL_PARSER, two_smollm2
from runs.measure.fetch import fetch
from runs.measure.streams import call, chat_request, gateway, process, resident_kib
from runs.measure.verdict import Verdict, at_least, at_most, finish

console = Console(width=110)
KEY = "hw-websocket"
PATH = "/v1/responses"
TURNS = 20
WORDS = (6_000, 300)  # of the first message, as a coding agent's, and of each result
WORDS_ON_VLLM = (1_500, 80)  # as much as the context of SmolLM2 holds after twenty turns
TOOL = {
    "type": "function",
    "name": "read_file",
    "strict": True,
    "parameters": {
        "type": "object",
        "properties": {"path": {"enum": ["notes.txt"]}},
        "required": ["path"],
        "additionalProperties": False,
    },
}
ANSWERS = """
[[answers]]
when = { offers_tool = "read_file" }
tool_calls = [{ name = "read_file", arguments = { path = "notes.txt" } }]
"""
IDLE_SOCKETS = 1_000
FLOOR_TPS, FAST_STREAMS, FAST_TOKENS = 50.0, 8, 200
MAX_OVERHEAD, MAX_BYTES, MAX_SOCKET_KIB, MIN_KEPT = 0.5, 0.2, 64.0, 0.995

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


# --- ways to send a turn ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Way:
    name: str
    transport: str  # new, kept or socket
    continues: bool  # with `previous_response_id`


NEW = Way("new connections, whole history", "new", continues=False)
KEPT = Way("kept-alive HTTP, whole history", "kept", continues=False)
SOCKET_CONTINUED = Way("socket, continued", "socket", continues=True)
WAYS = (
    NEW,
    Way("new connections, continued", "new", continues=True),
    KEPT,
    Way("kept-alive HTTP, continued", "kept", continues=True),
    Way("socket, whole history", "socket", continues=False),
    SOCKET_CONTINUED,
)


@dataclass(frozen=True)
class Turn:
    """Times are those of the monotonic clock."""

    call_id: str
    began_s: float
    ended_s: float
    reported_s: float  # by the engine in its answer, from when it had read the request to its last token


@dataclass
class Sent:
    """All turns of one way."""

    turns: list[Turn] = field(default_factory=list)
    conversation_bytes: list[int] = field(default_factory=list)  # sent by the client, of each conversation


@dataclass(frozen=True)
class Split:
    """Where the time of a turn has gone."""

    before_s: float  # the engine has the request's first byte
    engine_s: float
    after_s: float  # the engine has written its last byte

    @property
    def overhead_s(self) -> float:
        return self.before_s + self.after_s


class HTTPTurns:
    """Turns over HTTP/1.1, on one connection or on a new one each."""

    def __init__(self, port: int, *, keeps: bool) -> None:
        self._port, self._keeps = port, keeps
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.sent_bytes = 0

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        encoded = _encode({**body, "stream": True})
        head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1:{self._port}\r\nauthorization: Bearer {KEY}\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(encoded)}\r\n\r\n"
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        reader, writer = self._streams
        writer.write(head.encode() + encoded)
        self.sent_bytes += len(head) + len(encoded)
        status = await reader.readuntil(b"\r\n\r\n")
        if not status.startswith(b"HTTP/1.1 200"):
            raise RuntimeError(f"{status!r} {await reader.read(2_000)!r}")
        answer = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            answer += (await reader.readexactly(size + 2))[:-2]
        await reader.readexactly(2)
        if not self._keeps:
            self.close()
        return final_response(_decode(answer.rpartition(b"data: ")[2]))

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class SocketTurns:
    def __init__(self, connection: ClientConnection) -> None:
        self._connection = connection
        self.sent_bytes = 0

    async def ask(self, body: dict[str, Any]) -> dict[str, Any]:
        message = _encode({"type": "response.create", **body}).decode()
        await self._connection.send(message)
        self.sent_bytes += len(message) + 8  # a frame's head and mask
        while True:
            event = await self._connection.recv()
            if '"type":"response.completed"' in event[:200] or '"type":"response.incomplete"' in event[:200]:
                return final_response(_decode(event))
            if '"type":"error"' in event[:200] or '"type":"response.failed"' in event[:200]:
                raise RuntimeError(str(event)[:2_000])


def final_response(event: dict[str, Any]) -> dict[str, Any]:
    if event["type"] not in ("response.completed", "response.incomplete"):
        raise RuntimeError(str(event)[:2_000])
    response: dict[str, Any] = event["response"]
    return response


@asynccontextmanager
async def open_socket(port: int) -> AsyncIterator[ClientConnection]:
    headers = {"authorization": f"Bearer {KEY}"}
    async with connect(
        f"ws://127.0.0.1:{port}{PATH}", additional_headers=headers, compression=None, max_size=None, proxy=None
    ) as connection:
        yield connection


async def converse(way: Way, port: int, model: str, into: Sent, number: int, words: tuple[int, int] = WORDS) -> None:
    """One conversation of twenty turns."""
    if way.transport == "socket":
        async with open_socket(port) as connection:
            await take_turns(SocketTurns(connection), way, model, into, number, words)
        return
    turns = HTTPTurns(port, keeps=way.transport == "kept")
    try:
        await take_turns(turns, way, model, into, number, words)
    finally:
        turns.close()


async def take_turns(
    turns: HTTPTurns | SocketTurns, way: Way, model: str, into: Sent, number: int, words: tuple[int, int]
) -> None:
    context_words, result_words = words
    first = f"Conversation {number}, {way.name}. " + "word " * context_words
    history: list[Any] = [{"role": "user", "content": first}]
    new, previous = list(history), None
    # Only over HTTP does a continued conversation need the store; the socket remembers it.
    fixed: dict[str, Any] = {"model": model, "tools": [TOOL], "tool_choice": {"type": "function", "name": "read_file"}}
    fixed |= {"max_output_tokens": 32, "temperature": 0, "store": way.continues and way.transport != "socket"}
    for _ in range(TURNS):
        body = {**fixed, "input": new if way.continues else history}
        if way.continues and previous:
            body["previous_response_id"] = previous
        began_s = time.monotonic()
        response = await turns.ask(body)
        ended_s = time.monotonic()
        metrics = response["metrics"]
        reported_s = (metrics["time_to_first_token_ms"] + metrics["generation_time_ms"]) / 1e3
        into.turns.append(Turn(response["id"].removeprefix(RESPONSE_PREFIX), began_s, ended_s, reported_s))
        [made] = [item for item in response["output"] if item["type"] == "function_call"]
        result = {"type": "function_call_output", "call_id": made["call_id"], "output": "word " * result_words}
        new, previous = [result], response["id"]
        history += [{name: made[name] for name in ("type", "call_id", "name", "arguments")}, result]
    into.conversation_bytes.append(turns.sent_bytes)


async def measure_ways(port: int, model: str, rounds: int) -> dict[str, Sent]:
    sent = {way.name: Sent() for way in WAYS}
    for way in WAYS:  # the first conversation of each warms both sides up
        await converse(way, port, model, Sent(), -1)
    for number in track(range(rounds), "conversations", console=console, transient=True):
        first = number % len(WAYS)
        for way in (*WAYS[first:], *WAYS[:first]):
            await converse(way, port, model, sent[way.name], number)
    return sent


async def measure_once(port: int, model: str) -> dict[str, Sent]:
    """A short conversation over each way, without a warm-up."""
    sent = {way.name: Sent() for way in WAYS}
    for way in WAYS:
        await converse(way, port, model, sent[way.name], 0, WORDS_ON_VLLM)
    return sent


class EngineRecord(msgspec.Struct):
    """What is read of a scripted engine's record."""

    requests: dict[str, RequestRecord]


def split_turns(sent: dict[str, Sent], engine_url: str) -> dict[str, list[Split]]:
    recorded = msgspec.json.decode(fetch(f"{engine_url}/scripted/record"), type=EngineRecord).requests
    return {name: [split(turn, recorded[turn.call_id]) for turn in one.turns] for name, one in sent.items()}


def split(turn: Turn, engine: RequestRecord) -> Split:
    assert engine.received_s is not None
    assert engine.answered_s is not None
    return Split(
        engine.received_s - turn.began_s, engine.answered_s - engine.received_s, turn.ended_s - engine.answered_s
    )


# --- idle sockets ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Idle:
    kib_each: float
    kept_before: float  # shares of floors
    kept_beside: float


async def floors_kept(url: str, model: str) -> float:
    request = chat_request(model, FAST_TOKENS, key=KEY, service_tier="fast")
    streams = [
        one for _ in range(3) for one in await asyncio.gather(*[call(url, request) for _ in range(FAST_STREAMS)])
    ]
    return statistics.mean(stream.proof.get("kept") is True for stream in streams)


async def measure_idle(port: int, pid: int, model: str) -> Idle:
    url = f"http://127.0.0.1:{port}"
    before_kept, before_kib = await floors_kept(url, model), resident_kib(pid)
    sockets = [open_socket(port) for _ in range(IDLE_SOCKETS)]
    for one in sockets:
        await one.__aenter__()
    each = (resident_kib(pid) - before_kib) / IDLE_SOCKETS
    beside = await floors_kept(url, model)
    await asyncio.gather(*[one.__aexit__(None, None, None) for one in sockets])
    return Idle(each, before_kept, beside)


# --- the run ---------------------------------------------------------------------------------------------------------


@contextmanager
def served(folder: Path, engine_url: str, model: str) -> Iterator[tuple[int, int]]:
    """A gateway with a ledger and a fast tier. Yields its port and its process."""
    store = SQLiteStore(folder / "books.db")
    store.migrate()
    store.put_key(Key(id="websocket", hash=key_hash(KEY.encode())))
    store.close()
    ledger = f'store = "sqlite:///{folder}/books.db"\nspool = "{folder}/spool"\n'
    tiers = '[[models.tiers]]\nname = "standard"\n[[models.tiers]]\nname = "fast"\n'
    tiers += f"floor_tps = {FLOOR_TPS}\n[models.price]\ninput = 1.0\noutput = 1.0\n"
    curve = "curve = [[1, 200.0], [16, 150.0]]\n"
    ledger += f"[responses]\nmax_sockets_per_key = {2 * IDLE_SOCKETS}\n"
    port = free_port()
    with gateway(
        port,
        folder,
        model=model,
        engine_urls=[engine_url],
        seats=16,
        tiers=tiers,
        curve=curve,
        ledger=ledger,
    ) as pid:
        yield port, pid


@dataclass(frozen=True)
class Figures:
    overhead: float  # of the socket, continued, in shares of a new connection's with the whole history
    bytes_sent: float  # of the socket, continued, in shares of the whole history's over HTTP
    idle: Idle


def verdict(figures: Figures) -> Verdict:
    idle = figures.idle
    bars = (
        at_most("overhead of a turn: socket, continued ÷ new connection, whole", figures.overhead, MAX_OVERHEAD),
        at_most("bytes of twenty turns: socket, continued ÷ HTTP, whole", figures.bytes_sent, MAX_BYTES, ".3f"),
        at_most("memory of an idle socket", idle.kib_each, MAX_SOCKET_KIB, ".1f", " KiB"),
        at_least("floors kept without idle sockets", idle.kept_before, MIN_KEPT, ".1%"),
        at_least(f"floors kept beside {IDLE_SOCKETS:,} idle sockets", idle.kept_beside, MIN_KEPT, ".1%"),
    )
    figure = (
        f"a turn over the socket has {figures.overhead:.2f} times the overhead of a new connection (bar "
        f"{MAX_OVERHEAD}), and sends {figures.bytes_sent:.3f} times the bytes (bar {MAX_BYTES}); an idle socket takes "
        f"{idle.kib_each:.1f} KiB (bar {MAX_SOCKET_KIB:.0f})"
    )
    return Verdict(figure, bars)


def show(sent: dict[str, Sent], overhead_s: dict[str, list[float]]) -> None:
    table = Table("way", "overhead of a turn, ms: p50", "p95", "bytes of twenty turns")
    for name, one in sent.items():
        p50, p95 = statistics.median(overhead_s[name]), quantile(overhead_s[name], 0.95)
        table.add_row(name, f"{1e3 * p50:.2f}", f"{1e3 * p95:.2f}", f"{statistics.median(one.conversation_bytes):,.0f}")
    console.print(table)


def show_splits(splits: dict[str, list[Split]]) -> None:
    table = Table("way", "a turn, ms (p50): before the engine", "in the engine", "after the engine")
    for name, turns in splits.items():
        parts = ([one.before_s for one in turns], [one.engine_s for one in turns], [one.after_s for one in turns])
        table.add_row(name, *[f"{1e3 * statistics.median(part):.2f}" for part in parts])
    console.print(table)


def on_scripted(rounds: int) -> int:
    with tempfile.TemporaryDirectory() as name:
        folder, engine_port = Path(name), free_port()
        answers = folder / "answers.toml"
        answers.write_text(ANSWERS)
        engine = [sys.executable, "-m", "headway", "mock-engine", "--port", str(engine_port), "--model", "m"]
        engine += ["--first-token-ms", "5", "--step-ms", "1:5,16:6", "--max-model-len", "200000"]
        engine += ["--answers", str(answers)]
        engine_url = f"http://127.0.0.1:{engine_port}"
        with process(engine, f"{engine_url}/health"), served(folder, engine_url, "m") as (port, pid):
            sent = asyncio.run(measure_ways(port, "m", rounds))
            splits = split_turns(sent, engine_url)
            overhead_s = {name: [turn.overhead_s for turn in turns] for name, turns in splits.items()}
            show(sent, overhead_s)
            show_splits(splits)
            idle = asyncio.run(measure_idle(port, pid, "m"))
    socket_bytes, whole_bytes = (sent[way.name].conversation_bytes for way in (SOCKET_CONTINUED, KEPT))
    figures = Figures(
        statistics.median(overhead_s[SOCKET_CONTINUED.name]) / statistics.median(overhead_s[NEW.name]),
        statistics.median(socket_bytes) / statistics.median(whole_bytes),
        idle,
    )
    return finish(console, verdict(figures))


def on_vllm() -> int:
    with (
        tempfile.TemporaryDirectory() as name,
        two_smollm2(console, 16, TOOL_PARSER) as urls,
        served(Path(name), urls[0], MODEL_NAME) as (port, _),
    ):
        sent = asyncio.run(measure_once(port, MODEL_NAME))
        # vLLM reports what it took once it had read the request; it records no times of its own.
        show(
            sent,
            {name: [turn.ended_s - turn.began_s - turn.reported_s for turn in one.turns] for name, one in sent.items()},
        )
    return 0


if __name__ == "__main__":
    if sys.argv[1:] == ["vllm"]:
        sys.exit(on_vllm())
    sys.exit(on_scripted(int(sys.argv[1]) if len(sys.argv) > 1 else 15))

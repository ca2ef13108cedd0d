"""Reads what stands outside Headway: the engines' journals and PostgreSQL's rows. Knows nothing of Headway's code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psycopg
from psycopg.rows import class_row

REFUSED = "refused"  # the engine took it not, and said so
PROBE_ID_LENGTH = 16  # an engine's own ids, of requests that came without one
READ = """
SELECT id, call_id, attempt, kind, day, gateway, key, model, replica, tier, input_price, output_price, multiple_milli,
       amount, outcome, prompt_tokens, output_tokens, coalesce(cached_tokens, 0) AS cached_tokens, at_us
FROM entries ORDER BY call_id, attempt, kind
"""


class Line(msgspec.Struct, array_like=True):
    """A request begins (`tokens` is 0), gets its token with this number, or ends (`state` is set). The prompt's tokens
    are 0 while they are not known."""

    at_s: float
    call_id: str
    prompt_tokens: int
    tokens: int
    state: str = ""


@dataclass(slots=True)
class Stream:
    """One choice of one request, as an engine served it."""

    call_id: str
    choice: int
    engine: str
    prompt_tokens: int
    received_s: float
    tokens: int = 0
    first_s: float = 0.0
    last_s: float = 0.0
    ended_s: float = 0.0
    state: str = "running"

    def speed_tps(self) -> float | None:
        if self.tokens < 2 or self.last_s <= self.first_s:
            return None
        return (self.tokens - 1) / (self.last_s - self.first_s)


@dataclass(slots=True)
class Row:
    """One entry of the ledger."""

    id: str
    call_id: str
    attempt: int
    kind: str
    day: str
    gateway: str
    key: str
    model: str
    replica: str
    tier: str
    input_price: int
    output_price: int
    multiple_milli: int
    amount: int
    outcome: str
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    at_us: int


@dataclass(slots=True)
class Slice:
    """A part of a budget that a gateway has taken."""

    key: str
    period: str
    gateway: str
    amount: int


def read_journals(folder: Path, died_s: Mapping[str, Sequence[float]]) -> list[Stream]:
    """`died_s`: when the processes at each URL were killed. A stream without an end ended then."""
    streams: list[Stream] = []
    for path in sorted(folder.glob("*.journal")):
        host, port, _ = path.name.removesuffix(".journal").split("-")
        url = f"http://{host}:{port}"
        streams += _read_journal(path, url, died_s.get(url, ()))
    return streams


def _read_journal(path: Path, url: str, died_s: Sequence[float]) -> Iterator[Stream]:
    decode = msgspec.json.Decoder(Line).decode
    running: dict[str, Stream] = {}
    last_s = 0.0
    with path.open("rb") as file:
        for raw in file:
            try:
                line = decode(raw)
            except msgspec.DecodeError:  # the last one of a process that was killed
                continue
            last_s = line.at_s
            if len(line.call_id) == PROBE_ID_LENGTH:
                continue
            if line.state:
                ended = running.pop(line.call_id, None)
                if ended is not None and line.state != REFUSED:
                    ended.state, ended.ended_s = line.state, line.at_s
                    ended.tokens, ended.prompt_tokens = line.tokens, line.prompt_tokens or ended.prompt_tokens
                    yield ended
            elif line.tokens == 0:
                choice, _, call_id = line.call_id.rpartition("_")
                if line.call_id in running:  # the same call again, before the end of the first was written
                    yield _cut(running.pop(line.call_id), line.at_s)
                running[line.call_id] = Stream(call_id, int(choice or 0), url, line.prompt_tokens, line.at_s)
            elif (stream := running.get(line.call_id)) is not None:
                stream.tokens, stream.last_s = line.tokens, line.at_s
                stream.prompt_tokens = line.prompt_tokens or stream.prompt_tokens
                stream.first_s = stream.first_s or line.at_s
    end_s = min((at_s for at_s in died_s if at_s >= last_s), default=last_s)
    for stream in running.values():
        yield _cut(stream, end_s)


def _cut(stream: Stream, at_s: float) -> Stream:
    stream.state, stream.ended_s = "killed", at_s
    return stream


def read_lies(folder: Path) -> dict[str, str]:
    """The calls that an engine lied to, and how."""
    path = folder / "lies"
    lines = path.read_text().splitlines() if path.exists() else []
    return {call_id: kind for call_id, _, kind in (line.partition(" ") for line in lines)}


def read_rows(url: str) -> tuple[list[Row], list[Slice]]:
    with psycopg.connect(url) as connection:
        rows = connection.cursor(row_factory=class_row(Row)).execute(READ).fetchall()
        slices = connection.cursor(row_factory=class_row(Slice)).execute(
            "SELECT key, period, gateway, amount FROM slices"
        )
        return rows, slices.fetchall()

"""Two real engines behind one gateway with a ledger, and callers with the official SDK."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from collections.abc import Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
from openai import APIError, AsyncOpenAI
from rich.console import Console

from headway.ledger.entries import Entry
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.local.engine_env import MODEL_NAME
from headway.local.engine_process import EngineProcess, free_port
from headway.price import Price
from runs.measure.engines import READY_S, TOOL_PARSER, two_smollm2_processes
from runs.measure.fetch import fetch
from runs.measure.streams import process

KEY, ADMIN = "hw-continuation", "hw-continuation-admin"
SEATS = 64
# As these engines are on two cores, roughly: a fast stream has no more than eight streams beside it.
CURVE, PROMPT_TPS, FLOOR_TPS = "[[1, 10.0], [8, 6.0], [64, 2.0]]", 300.0, 5.0
PRICE, PRICE_TABLE = Price(150_000, 600_000), "{ input = 0.15, output = 0.60 }"  # per million tokens
TOPICS = ("rain", "bread", "a lighthouse", "chess", "the moon", "a harbour", "winter", "clocks", "tea", "an old bridge",
          "honey", "mountains", "a violin", "trains", "paper", "the desert")  # fmt: skip
WITH_TOOLS = TOPICS[::4]  # asked with a tool that may be called: the next engine parses the rest of the answer
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}


@dataclass
class Told:
    """One answer as its client saw it."""

    asked: int  # tokens; each answer has as many as its limit
    call_id: str = ""
    text: str = ""
    chunks: int = 0  # with a token or more
    tokens: int = 0  # by its usage
    prompt_tokens: int = 0
    headway: dict[str, Any] = field(default_factory=dict)
    finish_reason: str = ""
    first_at: float = 0.0  # when its first token came
    longest_pause_s: float = 0.0
    error: str = ""
    has_tools: bool = False

    @property
    def moves(self) -> int:
        return int(self.headway.get("moves", 0))

    @property
    def billed_micro(self) -> int:
        return int(self.headway["billed_micro"])

    @property
    def is_exact(self) -> bool:
        """Whether usage and bill are those of what was delivered."""
        is_whole = self.tokens == self.asked and self.finish_reason == "length"
        return is_whole and self.billed_micro == PRICE.amount(self.prompt_tokens, self.tokens)


@dataclass
class Service:
    engines: list[EngineProcess]
    url: str
    books: str  # the URL of the ledger's store
    sdk: AsyncOpenAI
    seed: int = 0  # of the engine that was started last; vLLM's own is 0

    async def ask(self, topic: str, tokens: int, temperature: float) -> Told:
        return await self.ask_into(Told(tokens), topic, temperature)

    async def ask_into(self, told: Told, topic: str, temperature: float, tier: str = "default") -> Told:
        """The same, into an answer that can be looked at meanwhile."""
        last_at = 0.0
        messages: Any = [{"role": "user", "content": f"Write about {topic}."}]
        fields: dict[str, Any] = {"ignore_eos": True, "service_tier": tier}
        if topic in WITH_TOOLS:
            fields["tools"], told.has_tools = [TOOL], True
        try:
            stream = await self.sdk.chat.completions.create(
                model=MODEL_NAME,
                messages=messages,
                max_tokens=told.asked,
                temperature=temperature,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=fields,
            )
            async for chunk in stream:
                now = time.perf_counter()
                for choice in chunk.choices:
                    if choice.delta.role is None:
                        told.chunks += 1
                        told.first_at = told.first_at or now
                    if last_at:
                        told.longest_pause_s = max(told.longest_pause_s, now - last_at)
                    last_at = now
                    told.text += choice.delta.content or ""
                    told.text += "".join(str(call.function) for call in choice.delta.tool_calls or ())
                    told.finish_reason = choice.finish_reason or told.finish_reason
                if chunk.usage is not None:
                    told.call_id, told.tokens = chunk.id, chunk.usage.completion_tokens
                    told.prompt_tokens = chunk.usage.prompt_tokens
                    told.headway = chunk.usage.model_extra["headway"] if chunk.usage.model_extra else {}
        except APIError as error:
            told.error = str(error)
        return told

    async def ask_all(self, topics: tuple[str, ...], tokens: int, temperature: float) -> list[Told]:
        return list(await asyncio.gather(*[self.ask(topic, tokens, temperature) for topic in topics]))

    async def replicas(self) -> dict[str, dict[str, Any]]:
        """By URL, as /admin/replicas says: `state` and `aboard`."""
        page = await asyncio.to_thread(fetch, f"{self.url}/admin/replicas", key=ADMIN)
        return {row["url"]: row for row in msgspec.json.decode(page)["replicas"]}

    async def open_replicas(self) -> int:
        return sum(row["state"] == "open" for row in (await self.replicas()).values())

    async def wrong_in_books(self, answers: list[Told]) -> int:
        """Answers whose entry in the ledger is not what their client was told."""
        wanted = {told.call_id.rpartition("-")[2]: told for told in answers if not told.error}
        async with asyncio.timeout(30):
            while len(found := self._served(wanted)) < len(wanted):
                await asyncio.sleep(0.2)
        pairs = [(found[call_id], told) for call_id, told in wanted.items()]
        return sum(
            (one.prompt_tokens, one.output_tokens, one.amount) != (told.prompt_tokens, told.tokens, told.billed_micro)
            or (one.repeated is None) != (told.moves == 0)
            for one, told in pairs
        )

    def _served(self, wanted: Container[str]) -> dict[str, Entry]:
        store = open_store(self.books)
        try:
            return {one.call_id: one for one in store.entries() if one.kind == "served" and one.call_id in wanted}
        finally:
            store.close()

    def kill(self, number: int) -> None:
        """The API server with SIGKILL, as a crash would. Its children are ended at once, too."""
        self.engines[number].kill()
        self.engines[number].stop(grace_s=0.0)

    def start_again(self, number: int) -> None:
        """With a seed of its own: with that of the last start it would draw the same random numbers again."""
        self.seed += 1
        engine = self.engines[number]
        engine.engine = replace(engine.engine, extra_args=(*TOOL_PARSER, "--seed", str(self.seed)))
        engine.start()
        engine.wait_ready(READY_S)


def config_text(folder: Path, port: int, urls: list[str]) -> str:
    admin = hashlib.sha256(ADMIN.encode()).hexdigest()
    engine = f"seats = {SEATS}\ncurve = {CURVE}\nprompt_tps = {PROMPT_TPS}\n"
    replicas = "".join(f'[[models.replicas]]\nurl = "{url}"\n{engine}' for url in urls)
    return (
        f'[gateway]\nport = {port}\nadmin_key_hashes = ["{admin}"]\nprobe_interval_s = 0.5\n'
        f'[ledger]\nstore = "sqlite:///{folder}/books.db"\nspool = "{folder}/spool"\n'
        f'[[models]]\nname = "{MODEL_NAME}"\nprice = {PRICE_TABLE}\nmoves_streams = true\n'
        f'[[models.tiers]]\nname = "standard"\n'
        f'[[models.tiers]]\nname = "fast"\nfloor_tps = {FLOOR_TPS}\nmax_hold_s = 60.0\n{replicas}'
    )


@contextmanager
def without_autogroups() -> Iterator[None]:
    """Linux can give the processes of one session a common share of the cores' time ("autogroup"). With kernel 6.18 a
    session that begins got 0.3 % of a core that another one keeps busy, for minutes: an engine that starts touches all
    cores for a moment, and did not come back. Engines in services and containers are not grouped like this."""
    setting = Path("/proc/sys/kernel/sched_autogroup_enabled")
    before = setting.read_text() if setting.exists() and os.access(setting, os.W_OK) else ""
    if before:
        setting.write_text("0")
    try:
        yield
    finally:
        if before:
            setting.write_text(before)


@contextmanager
def serving(console: Console, folder: Path) -> Iterator[Service]:
    """Both engines are ready, and the gateway takes calls."""
    with two_smollm2_processes(console, SEATS, TOOL_PARSER) as engines:
        books = f"sqlite:///{folder}/books.db"
        store = open_store(books)
        store.migrate()
        store.put_key(Key(id="key-run", hash=key_hash(KEY.encode())))
        store.close()
        port = free_port()
        config = folder / "headway.toml"
        config.write_text(config_text(folder, port, [engine.url for engine in engines]), encoding="utf-8")
        url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
        with process(command, f"{url}/ready"):
            sdk = AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=300.0)
            yield Service(engines, url, books, sdk)

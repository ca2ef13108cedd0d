"""Conversations of several tenants on two real vLLM engines: through Headway, and from engine to engine in turns.

Both ways in one run, one after the other, several times, with conversations that nobody had before. How many prompt
tokens were computed is what the engines themselves count.
"""

from __future__ import annotations

import asyncio
import random
import re
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Literal

from openai import AsyncOpenAI
from rich.console import Console
from rich.progress import Progress

from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.local.engine_env import MODEL_NAME
from headway.local.engine_process import free_port
from runs.measure.engines import two_smollm2
from runs.measure.fetch import fetch
from runs.measure.streams import process

Way = Literal["Headway", "in turns"]
TENANTS, CONVERSATIONS, TURNS = 4, 40, 8
AT_ONCE = 8  # conversations; each asks again as soon as it has its answer
SYSTEM_WORDS, TURN_WORDS, ANSWER_TOKENS = 120, 200, 8
SEATS = 32
# As these engines are on two cores without bf16 instructions, roughly.
CURVE, PROMPT_TPS = "[[1, 10.0], [8, 6.0], [32, 3.0]]", 500.0
WORDS = [
    "river",
    "stone",
    "bridge",
    "lamp",
    "winter",
    "paper",
    "garden",
    "music",
    "window",
    "silver",
    "bread",
    "clock",
    "forest",
    "letter",
    "market",
    "island",
    "summer",
    "horse",
    "engine",
    "village",
    "cloud",
    "mirror",
    "copper",
    "harbour",
    "blanket",
    "thunder",
    "pencil",
    "orchard",
    "ribbon",
    "candle",
]
COUNTED = re.compile(rb"^vllm:prefix_cache_(queries|hits)_total\{.*\} ([\d.e+]+)$", re.M)


@dataclass
class Seen:
    """What the calls of one way got."""

    computed_tokens: list[int] = field(default_factory=list)  # of prompts, by round
    first_token_s: list[list[float]] = field(default_factory=list)  # of all calls, by round
    errors: int = 0


@dataclass
class Place:
    urls: list[str]
    gateway: str

    def computed(self) -> int:
        """Prompt tokens that the engines did not find in their caches, since they were started."""
        total = 0
        for url in self.urls:
            counts = {name: float(value) for name, value in COUNTED.findall(fetch(f"{url}/metrics"))}
            total += int(counts[b"queries"] - counts[b"hits"])
        return total


def key_of(tenant: int) -> str:
    return f"hw-prefixes-{tenant}"


def text_of(chance: random.Random, words: int) -> str:
    return " ".join(chance.choices(WORDS, k=words))


@contextmanager
def serving(console: Console, folder: Path) -> Iterator[Place]:
    # Blocks of 32 tokens are the smallest of vLLM on CPUs: the rest of a prompt after its last whole one is read again.
    with two_smollm2(console, SEATS, ("--block-size", "32")) as urls:
        books = f"sqlite:///{folder}/books.db"
        store = open_store(books)
        store.migrate()
        for tenant in range(TENANTS):
            store.put_key(Key(id=f"key-{tenant}", hash=key_hash(key_of(tenant).encode())))
        store.close()
        port, config = free_port(), folder / "headway.toml"
        engine = f"seats = {SEATS}\ncurve = {CURVE}\nprompt_tps = {PROMPT_TPS}\n"
        config.write_text(
            f'[gateway]\nport = {port}\n[ledger]\nstore = "{books}"\nspool = "{folder}/spool"\n'
            f'[[models]]\nname = "{MODEL_NAME}"\nprice = {{ input = 0.15, output = 0.60 }}\n'
            + "".join(f'[[models.replicas]]\nurl = "{url}"\n{engine}' for url in urls),
            encoding="utf-8",
        )
        gateway = f"http://127.0.0.1:{port}"
        with process([sys.executable, "-m", "headway", "serve", "--config", str(config)], f"{gateway}/ready"):
            yield Place(urls, gateway)


class Callers:
    """`AT_ONCE` conversations at a time, in one way."""

    def __init__(self, place: Place, way: Way, seed: int, progress: Progress) -> None:
        self.first_token_s: list[float] = []
        self.errors = 0
        self._seed = seed
        self._way = way
        urls = [place.gateway] if way == "Headway" else place.urls
        self._engines = cycle([AsyncOpenAI(base_url=f"{url}/v1", api_key="none", timeout=300.0) for url in urls])
        chance = random.Random(f"{seed} {way} systems")
        self._systems = [text_of(chance, SYSTEM_WORDS) for _ in range(TENANTS)]
        self._waiting = iter(range(CONVERSATIONS))
        self._progress = progress
        self._task = progress.add_task(way, total=CONVERSATIONS * TURNS)

    async def run(self) -> None:
        await asyncio.gather(*[self._one_by_one() for _ in range(AT_ONCE)])

    async def _one_by_one(self) -> None:
        for number in self._waiting:
            chance, tenant = random.Random(f"{self._seed} {self._way} {number}"), number % TENANTS
            messages = [{"role": "system", "content": self._systems[tenant]}]
            for _ in range(TURNS):
                messages.append({"role": "user", "content": text_of(chance, TURN_WORDS)})
                answer = "".join([piece async for piece in self._ask(messages, tenant)])
                messages.append({"role": "assistant", "content": answer})
                self._progress.advance(self._task)

    async def _ask(self, messages: Any, tenant: int) -> AsyncIterator[str]:
        """Round robin keeps tenants apart as the gateway does, by a salt for each."""
        salt = {} if self._way == "Headway" else {"cache_salt": f"{self._seed} {tenant}"}
        sent_at, is_first = time.perf_counter(), True
        try:
            stream = await next(self._engines).chat.completions.create(
                model=MODEL_NAME,
                messages=messages,
                max_tokens=ANSWER_TOKENS,
                temperature=0.0,
                stream=True,
                extra_body={"ignore_eos": True, **salt},
                extra_headers={"authorization": f"Bearer {key_of(tenant)}"},
            )
            async for chunk in stream:
                text = chunk.choices[0].delta.content if chunk.choices else None
                if text and is_first:
                    self.first_token_s.append(time.perf_counter() - sent_at)
                    is_first = False
                yield text or ""
        except OSError:
            self.errors += 1


async def compare(place: Place, rounds: int, console: Console) -> dict[Way, Seen]:
    """The ways in turns; the one that is first changes with each round."""
    seen: dict[Way, Seen] = {"Headway": Seen(), "in turns": Seen()}
    ways: list[Way] = ["in turns", "Headway"]
    for number in range(rounds):
        for way in ways[:: 1 if number % 2 else -1]:
            with Progress(console=console, transient=True) as progress:
                callers, before = Callers(place, way, number, progress), place.computed()
                await callers.run()
            seen[way].computed_tokens.append(place.computed() - before)
            seen[way].first_token_s.append(callers.first_token_s)
            seen[way].errors += callers.errors
    return seen

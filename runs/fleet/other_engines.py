"""Servers that are not vLLM: `transformers serve` behind the kind `openai`, and a hosted server for overflow. See
runs/other-engines.sh."""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import uvloop
from anthropic import AsyncAnthropic, BadRequestError
from openai import AsyncOpenAI
from rich.console import Console

from headway.ledger.entries import Entry
from headway.ledger.keys import Key, key_hash
from headway.ledger.sqlite import SQLiteStore
from headway.local.engine_env import ensure_cpu_engine, ensure_smollm2
from headway.local.engine_process import free_port
from runs.fleet.hosted_server import make_certificate
from runs.measure.fetch import fetch
from runs.measure.streams import process, scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
ALIAS, SEATS, TOKENS = "smollm2-135m", 2, 12
ASK: Any = [{"role": "user", "content": "Name three colours."}]
KEY, THEIR_KEY = "hw-runs-other-engines", "key-of-the-hosted-server"
HERE_SEATS, CALLS, CALLERS = 4, 240, 16
# Micro-units per token: here, and at the hosted server.
PRICE, THEIR_PRICE = (1, 10), (3, 50)
SMALL_BUDGET = 0.05
BUSY_TOKENS = 6_000


@dataclass(frozen=True)
class Figures:
    asked: int  # calls to `transformers serve`, through the official SDK
    wrong: list[str]  # what was not as it should be
    most_aboard: int  # streams at once on its two seats
    overflown: int  # calls that the hosted server took
    here: int  # calls that found a seat here meanwhile
    unnamed: int  # calls that it took and that had no header, or the other way round
    tokens_off: int  # difference between the bill and what the hosted server says that it sent
    amounts_off: int  # entries whose amount is not their tokens at the price of who served
    budget_spent: float  # of the small budget
    leaks: int  # answers or pages with the key of the hosted server


def verdict(figures: Figures) -> Verdict:
    bars = (
        at_least("calls to `transformers serve`", figures.asked, 12, "d"),
        none_of("of these not as they should be", len(figures.wrong)),
        at_most("streams at once on its seats", figures.most_aboard, SEATS, "d"),
        at_least("calls that overflowed", figures.overflown, 50, "d"),
        at_least("calls served here meanwhile", figures.here, 10, "d"),
        none_of("headers that do not say who served", figures.unnamed),
        none_of("tokens billed beside what the hosted server sent", figures.tokens_off),
        none_of("amounts that are not the tokens at their price", figures.amounts_off),
        at_least("share of a small budget that was spent", figures.budget_spent, 0.9),
        at_most("share of a small budget that was spent", figures.budget_spent, 1.0),
        none_of("answers with the key of the hosted server", figures.leaks),
    )
    figure = (
        f"`transformers serve` answered {figures.asked} calls of the official SDK, {len(figures.wrong)} not as they "
        f"should be; {figures.overflown} of {figures.overflown + figures.here} calls overflowed to a hosted server: "
        f"{figures.unnamed} without the right header, {figures.tokens_off} tokens off the bill, "
        f"{figures.amounts_off} wrong amounts; {figures.budget_spent:.1%} of a small budget spent"
    )
    return Verdict(figure, bars)


# --- transformers serve ---


@contextmanager
def transformers_serve(folder: Path) -> Iterator[tuple[str, str]]:
    """Gives its URL and the name of its model, which is the folder of the weights."""
    python = ensure_cpu_engine(console.print)
    model = str(ensure_smollm2(python, console.print))
    port, empty = free_port(), folder / "hub"
    empty.mkdir()
    command = [str(python.with_name("transformers")), "serve", model, "--device", "cpu", "--dtype", "float32"]
    env = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(empty)}
    url = f"http://127.0.0.1:{port}"
    with process([*command, "--host", "127.0.0.1", "--port", str(port)], f"{url}/health", env):
        yield url, model


async def ask_transformers(url: str, gateway_url: str, wrong: list[str]) -> tuple[int, int]:
    """Ask in all ways that the server has, four at once. Returns how many calls, and how many were aboard at most."""
    asked = most = 0
    sdk = AsyncOpenAI(base_url=f"{gateway_url}/v1", api_key="none", max_retries=0, timeout=300)

    def check(what: str, is_so: object) -> None:
        if not is_so:
            wrong.append(what)

    async def watch() -> None:
        nonlocal most
        while True:
            page = fetch(f"{gateway_url}/metrics").decode()
            aboard = [line for line in page.splitlines() if line.startswith("headway_replica_streams{")]
            most = max([most, *[int(float(line.split()[-1])) for line in aboard]])
            await asyncio.sleep(0.05)

    async def whole() -> None:
        answer: Any = await sdk.chat.completions.create(model=ALIAS, messages=ASK, max_tokens=TOKENS)
        check("a whole answer has text", answer.choices[0].message.content)
        check("a whole answer has as many tokens as asked for", answer.usage.completion_tokens == TOKENS)
        check("a whole answer has a proof", answer.usage.headway["tier_served"] == "standard")

    async def streamed() -> None:
        options: Any = {"include_usage": True}
        stream = await sdk.chat.completions.create(
            model=ALIAS, messages=ASK, max_tokens=TOKENS, stream=True, stream_options=options
        )
        chunks: list[Any] = [chunk async for chunk in stream]
        check("a stream has text", "".join(c.choices[0].delta.content or "" for c in chunks if c.choices))
        check("a stream has its usage last", chunks[-1].usage.completion_tokens == TOKENS)
        check("a stream has its speed in the proof", chunks[-1].usage.headway["tokens_per_second"])

    async def completion() -> None:
        answer: Any = await sdk.completions.create(model=ALIAS, prompt="Once upon a time", max_tokens=TOKENS)
        check("a completion has text", answer.choices[0].text)
        check("a completion has a proof", answer.usage.headway)

    watching = asyncio.create_task(watch())
    try:
        for kind in (whole, streamed, completion):
            await asyncio.gather(*[kind() for _ in range(4)])
            asked += 4
        [row] = [one async for one in sdk.models.list() if one.id == ALIAS]
        check("/v1/models says which endpoints there are", len(row.endpoints) == 2)  # type: ignore[attr-defined]
        check("/v1/models says how tokens are counted", row.exact_token_counts is False)  # type: ignore[attr-defined]
        async with AsyncAnthropic(base_url=gateway_url, api_key="none", max_retries=0) as other:
            try:
                await other.messages.create(model=ALIAS, messages=ASK, max_tokens=TOKENS)
                check("Messages are refused", is_so=False)
            except BadRequestError as refused:
                check("the refusal of Messages names what there is", "/v1/chat/completions" in str(refused))
    finally:
        watching.cancel()
        await sdk.close()
    return asked, most


def serve_transformers(folder: Path) -> tuple[int, list[str], int]:
    wrong: list[str] = []
    port = free_port()
    with transformers_serve(folder) as (url, model):
        config = folder / "openai.toml"
        text = f'[gateway]\nport = {port}\n[[models]]\nname = "{model}"\naliases = ["{ALIAS}"]\n[[models.replicas]]\n'
        config.write_text(f'{text}url = "{url}"\nkind = "openai"\nseats = {SEATS}\n')
        command = [sys.executable, "-m", "headway", "serve", "--config", str(config)]
        with process(command, f"http://127.0.0.1:{port}/ready"):
            asked, most = uvloop.run(ask_transformers(url, f"http://127.0.0.1:{port}", wrong))
    for one in wrong:
        console.print(f"not as it should be: {one}", markup=False, highlight=False)
    return asked, wrong, most


# --- a hosted server ---


@dataclass
class Answers:
    """Of the calls that overflowed or not, as clients see them."""

    named: int = 0  # with the header
    unnamed: int = 0  # without it
    refused: int = 0
    contradictions: int = 0  # header and proof differ
    leaks: int = 0


class HostedRun:
    """A gateway with a few seats here, and a hosted server with TLS and a key."""

    def __init__(self, folder: Path, budget_day: float, max_hold_s: float) -> None:
        folder.mkdir()
        certificate, private = make_certificate(folder)
        os.environ["SSL_CERT_FILE"] = str(certificate)  # whom this process and those that it starts trust
        here, there, port = free_port(), free_port(), free_port()
        self.their_url, self.url = f"https://127.0.0.1:{there}", f"http://127.0.0.1:{port}"
        self.store = SQLiteStore(folder / "books.db")
        self.store.migrate()
        self.store.put_key(Key(id="key-run", hash=key_hash(KEY.encode())))
        (folder / "headway.toml").write_text(
            f'[gateway]\nport = {port}\n[ledger]\nstore = "sqlite:///{folder}/books.db"\nspool = "{folder}/spool"\n'
            f'[[models]]\nname = "ours"\n[[models.tiers]]\nname = "standard"\nmax_hold_s = {max_hold_s}\n'
            f'[[models.replicas]]\nurl = "http://127.0.0.1:{here}"\nseats = {HERE_SEATS}\n'
            f"[models.price]\ninput = {PRICE[0]}.0\noutput = {PRICE[1]}.0\n"
            f'[models.hosted]\nurl = "{self.their_url}"\nmodel = "theirs"\nkey_env = "THEIR_KEY"\nafter_s = 0.1\n'
            f"budget_day = {budget_day}\n[models.hosted.price]\n"
            f"input = {THEIR_PRICE[0]}.0\noutput = {THEIR_PRICE[1]}.0\n"
        )
        self._running = ExitStack()
        enter = self._running.enter_context
        enter(scripted(here, model="ours", first_token_ms=20, step_ms="1:25", seats=HERE_SEATS))
        keyed = ["--cert", str(certificate), "--private", str(private), "--key", THEIR_KEY]
        command = [sys.executable, "-m", "runs.fleet.hosted_server", "--port", str(there), *keyed]
        enter(process(command, f"{self.their_url}/health"))
        command = [sys.executable, "-m", "headway", "serve", "--config", str(folder / "headway.toml")]
        enter(process(command, f"{self.url}/ready", {**os.environ, "THEIR_KEY": THEIR_KEY}))

    def close(self) -> None:
        self._running.close()

    def tokens_sent_there(self) -> int:
        request = urllib.request.Request(f"{self.their_url}/scripted/record")
        request.add_header("authorization", f"Bearer {THEIR_KEY}")
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request) as answer:
            return int(msgspec.json.decode(answer.read())["tokens_sent"])

    async def entries(self, calls: int) -> list[Entry]:
        """Of the calls that were served, once all are in the store."""
        async with asyncio.timeout(60):
            while True:
                served = [entry for entry in self.store.entries() if entry.kind == "served"]
                if len(served) >= calls:
                    return served
                await asyncio.sleep(0.1)

    async def ask(self, sdk: AsyncOpenAI, number: int, seen: Answers, tokens: int = 20) -> None:
        options = {"stream": True, "stream_options": {"include_usage": True}} if number % 2 else {}
        create: Any = sdk.chat.completions.with_raw_response.create
        try:
            answer = await create(model="ours", messages=ASK, max_tokens=tokens, **options)
        except openai.RateLimitError as refused:
            seen.refused += 1
            seen.leaks += THEIR_KEY in str(refused)
            return
        response: httpx.Response = answer.http_response
        text = (await response.aread()).decode()
        is_named = response.headers.get("headway-served-by") == "127.0.0.1"
        seen.named += is_named
        seen.unnamed += not is_named
        seen.contradictions += is_named != ('"served_by":"127.0.0.1"' in text)
        seen.leaks += THEIR_KEY in text or THEIR_KEY in str(response.headers)


async def overflow(run: HostedRun) -> tuple[Answers, int, int]:
    """Returns what clients saw, the tokens that the bill is off, and the amounts that are wrong."""
    seen, numbers = Answers(), iter(range(CALLS))
    async with AsyncOpenAI(base_url=f"{run.url}/v1", api_key=KEY, max_retries=0, timeout=120) as sdk:

        async def caller() -> None:
            for number in numbers:
                await run.ask(sdk, number, seen)

        await asyncio.gather(*[caller() for _ in range(CALLERS)])
    entries = await run.entries(seen.named + seen.unnamed)
    there = [entry for entry in entries if entry.replica == run.their_url]
    off = abs(sum(entry.output_tokens for entry in there) - run.tokens_sent_there())
    seen.contradictions += abs(len(there) - seen.named)
    wrong = 0
    for entry in entries:
        per_input, per_output = THEIR_PRICE if entry.replica == run.their_url else PRICE
        wrong += entry.amount != per_input * entry.prompt_tokens + per_output * entry.output_tokens
    return seen, off, wrong


async def spend(run: HostedRun) -> float:
    """Take all seats here, then call until nothing is left of the budget. Returns the share that was spent."""
    seen = Answers()
    async with AsyncOpenAI(base_url=f"{run.url}/v1", api_key=KEY, max_retries=0, timeout=600) as sdk:
        staying = [asyncio.create_task(run.ask(sdk, 1, Answers(), BUSY_TOKENS)) for _ in range(HERE_SEATS)]
        await asyncio.sleep(1)
        while seen.refused < 3:
            await run.ask(sdk, seen.named, seen)
        entries = await run.entries(seen.named)
        for task in staying:
            task.cancel()
        await asyncio.gather(*staying, return_exceptions=True)
    return sum(entry.amount for entry in entries if entry.replica == run.their_url) / (SMALL_BUDGET * 1e6)


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        asked, wrong, most = serve_transformers(Path(folder))
        run = HostedRun(Path(folder) / "plenty", 1_000.0, 30.0)
        try:
            seen, tokens_off, amounts_off = uvloop.run(overflow(run))
        finally:
            run.close()
        run = HostedRun(Path(folder) / "small", SMALL_BUDGET, 1.0)
        try:
            spent = uvloop.run(spend(run))
        finally:
            run.close()
    figures = Figures(
        asked=asked,
        wrong=wrong,
        most_aboard=most,
        overflown=seen.named,
        here=seen.unnamed,
        unnamed=seen.contradictions,
        tokens_off=tokens_off,
        amounts_off=amounts_off,
        budget_spent=spent,
        leaks=seen.leaks,
    )
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main())

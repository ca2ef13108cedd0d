"""A limit of tokens per minute and a budget, each raced over four relays. See runs/cell-limits.sh.

Each round has two keys, one with a limit and one with a budget, and callers that use them all the time, each call on a
new connection, which the kernel gives to one of the relays.
"""

from __future__ import annotations

import asyncio
import random
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import msgspec
import uvloop
from rich.console import Console
from rich.progress import track
from rich.table import Table

from headway.engines.vllm import read_metrics
from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool
from headway.ledger.entries import Entry
from headway.ledger.keys import Key, key_hash
from headway.ledger.opening import open_store
from headway.ledger.store import Store
from headway.ledger.verify import verify, verify_budgets
from headway.local.engine_process import free_port
from runs.cell.races import Answer, Kind, Reached, refused_early, times_reached, tokens_of
from runs.ledger.own_postgres import OwnPostgres
from runs.measure.fetch import fetch
from runs.measure.streams import CHAT_PATH, ChatRequest, chat_request, gateway, scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
MODEL = "m"
RELAYS, ENGINES, SEATS, CALLERS = 4, 2, 64, 24  # callers of each key
ROUND_S = 20.0
PER_MINUTE = 12_000  # tokens
BUDGET = 100_000  # micro-units
PRICE = "[models.price]\ninput = 2.0\noutput = 10.0\n"
PAUSE_S = (0.05, 0.3)  # of a caller that was refused; bounds the load
START_S, CALL_S, SHIP_S = 30.0, 30.0, 60.0  # time limits: to open the engines, of a call, to ship all entries
MIN_SHARE = 0.1


@dataclass(frozen=True)
class Race:
    """The calls of one key."""

    kind: Kind
    key: str
    answers: tuple[Answer, ...]

    @property
    def served(self) -> list[Answer]:
        return [one for one in self.answers if one.is_served]

    @property
    def refused(self) -> list[Answer]:
        return [one for one in self.answers if one.is_refusal_of(self.kind)]

    @property
    def otherwise(self) -> list[Answer]:
        return [one for one in self.answers if not one.is_served and not one.is_refusal_of(self.kind)]


@dataclass(frozen=True)
class LimitRace:
    reached: tuple[Reached, ...]
    early: int  # refused although the limit was not reached


@dataclass(frozen=True)
class BudgetRace:
    billed: int  # micro-units
    dearest: int  # the most that was reserved for a call


@dataclass(frozen=True)
class Figures:
    limits: tuple[LimitRace, ...]
    budgets: tuple[BudgetRace, ...]
    served: int
    refused: int
    otherwise: int  # answers that are neither
    least_share: float  # of the relay that served the fewest calls of a key
    problems: tuple[str, ...]  # of the books


def verdict(figures: Figures) -> Verdict:
    reached = [one for race in figures.limits for one in race.reached]
    share = max((one.over / one.under_way for one in reached), default=float("nan"))
    over = max((one.over for one in reached), default=float("nan"))
    fewest = min((len(race.reached) for race in figures.limits), default=0)
    overrun = sum(max(0, race.billed - BUDGET) for race in figures.budgets)
    left = max(((BUDGET - race.billed) / race.dearest for race in figures.budgets), default=float("nan"))
    early = sum(race.early for race in figures.limits)
    bars = (
        at_most("tokens over a limit ÷ tokens under way when it was reached, worst", share, 1.0),
        at_least("times that a limit was reached in a race, fewest", fewest, 2, "d"),
        none_of("calls refused below a limit", early),
        none_of("micro-units over a budget", overrun),
        at_most("left of a budget, in calls of the highest cost, most", left, RELAYS + 1),
        none_of("calls that got any other answer", figures.otherwise),
        at_least("share of the relay that served the fewest calls of a key", figures.least_share, MIN_SHARE, ".0%"),
        none_of("differences between callers, books and engines", len(figures.problems)),
    )
    figure = (
        f"{len(figures.limits)} limits of {PER_MINUTE:,} tokens per minute, raced by {CALLERS} callers over {RELAYS} "
        f"relays, were reached {len(reached)} times: at most {over:.0f} tokens over, {share:.2f} of what was under way "
        f"(bar 1); {len(figures.budgets)} budgets: {overrun} micro-units over (bar 0); {figures.served:,} calls were "
        f"served, {figures.refused:,} refused, {early} of them early (bar 0), {figures.otherwise} answered "
        f"otherwise (bar 0); each relay served at least {figures.least_share:.0%} of a key's calls; differences in the "
        f"books {len(figures.problems)} (bar 0)"
    )
    return Verdict(figure, bars)


def a_request(dice: random.Random, key: str) -> ChatRequest:
    prompt = "bus " * dice.randint(20, 80)
    streamed = dice.random() < 0.5
    more = {} if streamed else {"stream": False, "stream_options": None}
    return chat_request(MODEL, dice.randint(10, 60), key, prompt, **more)


async def ask(url: str, request: ChatRequest) -> Answer:
    """One call on a new connection. Status 0: it was cut off, or took too long."""
    sent_at = time.perf_counter()
    try:
        async with asyncio.timeout(CALL_S):
            response = await ConnectionPool(url).send(b"POST", CHAT_PATH, request.body, request.headers)
            try:
                body = await response.read()
            finally:
                response.close()
    except (ConnectionFailed, TimeoutError):
        return Answer(sent_at, time.perf_counter(), 0)
    ended_at = time.perf_counter()
    if response.status != 200:
        reason = msgspec.json.decode(body)["error"]["code"]
        retry_after_s = int(response.headers.get(b"retry-after", b"0"))
        return Answer(sent_at, ended_at, response.status, reason=reason, retry_after_s=retry_after_s)
    if body.startswith(b"data: "):
        *_, body, done = body.removeprefix(b"data: ").split(b"\n\ndata: ")
        if done.strip() != b"[DONE]":
            return Answer(sent_at, ended_at, 0)
    usage = msgspec.json.decode(body)["usage"]
    tokens = (usage["prompt_tokens"], usage["completion_tokens"])
    return Answer(sent_at, ended_at, 200, *tokens, usage["headway"]["billed_micro"])


async def use(url: str, key: str, dice: random.Random, until: float) -> list[Answer]:
    """One caller, who waits a moment after a refusal."""
    answers = []
    while time.perf_counter() < until:
        answers.append(await ask(url, a_request(dice, key)))
        if not answers[-1].is_served:
            await asyncio.sleep(dice.uniform(*PAUSE_S))
    return answers


async def run_race(url: str, kind: Kind, key: str, seed: int) -> Race:
    until = time.perf_counter() + ROUND_S
    callers = [use(url, key, random.Random(f"{seed} {key} {number}"), until) for number in range(CALLERS)]
    return Race(kind, key, tuple(answer for answers in await asyncio.gather(*callers) for answer in answers))


def kinds_of(number: int) -> tuple[Kind, Kind]:
    return ("output" if number % 2 == 0 else "input"), "budget"


def make_key(kind: Kind, key: str) -> Key:
    hashed = key_hash(key.encode())
    if kind == "budget":  # of a month: a run that begins before midnight has one budget too
        return Key(id=key, hash=hashed, budget_month=BUDGET)
    if kind == "input":
        return Key(id=key, hash=hashed, input_tpm=PER_MINUTE)
    return Key(id=key, hash=hashed, output_tpm=PER_MINUTE)


def counts_of(engine_urls: list[str]) -> tuple[int, int]:
    """The tokens of prompts and of answers that the engines counted."""
    names = (b"vllm:prompt_tokens_total", b"vllm:generation_tokens_total")
    counted = [read_metrics(fetch(f"{url}/metrics", timeout_s=5), names) for url in engine_urls]
    return int(sum(prompt for prompt, _ in counted)), int(sum(output for _, output in counted))


async def until_probed(engine_urls: list[str]) -> tuple[int, int]:
    """Wait until each engine was asked for the token that opens it. Returns what the engines have counted then."""
    async with asyncio.timeout(START_S):
        while not all(counts_of([url])[1] for url in engine_urls):
            await asyncio.sleep(0.05)
    return counts_of(engine_urls)


async def until_shipped(store: Store, calls: int) -> None:
    """Wait until the ledger has every served call, at most SHIP_S. The bars catch what is still missing then."""
    deadline = time.monotonic() + SHIP_S
    while time.monotonic() < deadline:
        if sum(entry.kind == "released" for entry in store.entries()) >= calls:
            return
        await asyncio.sleep(0.2)


def differences(races: list[Race], entries: list[Entry], by_engines: tuple[int, int]) -> list[str]:
    """What the callers were told, what is in the books and what the engines counted, where they differ."""
    found = []
    for race in races:
        told = [(one.prompt_tokens, one.output_tokens, one.billed_micro) for one in race.served]
        booked = [
            (entry.prompt_tokens, entry.output_tokens, entry.amount)
            for entry in entries
            if entry.key == race.key and entry.kind == "served"
        ]
        if sorted(told) != sorted(booked):
            found.append(f"{race.key}: {len(told)} calls with {sum(one[2] for one in told)} micro-units were served, "
                         f"{len(booked)} with {sum(one[2] for one in booked)} are in the books")  # fmt: skip
    served = [entry for entry in entries if entry.kind == "served"]
    billed = (sum(entry.prompt_tokens for entry in served), sum(entry.output_tokens for entry in served))
    if billed != by_engines:
        found.append(f"{billed} tokens of prompts and answers are billed, the engines counted {by_engines}")
    return found


def least_share(races: list[Race], entries: list[Entry]) -> float:
    shares = []
    for race in races:
        by_relay = Counter(entry.gateway for entry in entries if entry.key == race.key and entry.kind == "served")
        shares.append(min(by_relay.values()) / by_relay.total() if len(by_relay) == RELAYS else 0.0)
    return min(shares)


def limit_race(race: Race) -> LimitRace:
    tokens = tokens_of(race.kind, list(race.answers))
    return LimitRace(tuple(times_reached(tokens, PER_MINUTE)), refused_early(tokens, race.refused, PER_MINUTE))


def budget_race(race: Race, entries: list[Entry]) -> BudgetRace:
    own = [entry for entry in entries if entry.key == race.key]
    billed = sum(entry.amount for entry in own if entry.kind in ("served", "refunded"))
    return BudgetRace(billed, max(entry.amount for entry in own if entry.kind == "reserved"))


async def main(seed: int, rounds: int) -> int:
    console.print(f"seed {seed}")
    folder = Path(tempfile.mkdtemp(prefix="headway-limits-"))
    port, engine_ports = free_port(), [free_port() for _ in range(ENGINES)]
    engine_urls = [f"http://127.0.0.1:{one}" for one in engine_ports]
    url = f"http://127.0.0.1:{port}"
    named = [(kind, f"hw-{kind}-{number}") for number in range(rounds) for kind in kinds_of(number)]
    races: list[Race] = []
    with ExitStack() as stack:
        database = OwnPostgres()
        stack.callback(database.remove)
        database.start()
        store = open_store(database.url)
        store.migrate()
        for kind, key in named:
            store.put_key(make_key(kind, key))
        for engine_port in engine_ports:
            stack.enter_context(scripted(engine_port, model=MODEL, first_token_ms=10, step_ms="1:10", seats=SEATS))
        ledger = f'store = "{database.url}"\nspool = "{folder}/spool"\n'
        stack.enter_context(
            gateway(port, folder, model=MODEL, engine_urls=engine_urls, seats=SEATS, tiers=PRICE, ledger=ledger,
                    relays=RELAYS)
        )  # fmt: skip
        before = await until_probed(engine_urls)
        for number in track(range(rounds), console=console, transient=True):
            pair = named[2 * number : 2 * number + 2]
            races += await asyncio.gather(*[run_race(url, kind, key, seed) for kind, key in pair])
        await until_shipped(store, sum(len(race.served) for race in races))
        entries = list(store.entries())
        checked = verify(entries)
        verify_budgets(checked, store.slices(), store.keys_since(0))
        after = counts_of(engine_urls)
        by_engines = (after[0] - before[0], after[1] - before[1])
        problems = [*checked.problems, *differences(races, entries, by_engines)]
        store.close()
    limits = {race.key: limit_race(race) for race in races if race.kind != "budget"}
    budgets = {race.key: budget_race(race, entries) for race in races if race.kind == "budget"}
    table = Table("key", "served", "refused", "reached", "tokens over ÷ under way, each time", "billed ÷ budget")
    for race in races:
        reached = limits[race.key].reached if race.key in limits else ()
        money = f"{budgets[race.key].billed:,} ÷ {BUDGET:,}" if race.key in budgets else ""
        counts = (len(race.served), len(race.refused), len(reached))
        table.add_row(
            race.key, *map(str, counts), ", ".join(f"{one.over:.0f} ÷ {one.under_way}" for one in reached), money
        )
    console.print(table)
    for problem in problems[:10]:
        console.print(problem, style="red", markup=False)
    others = Counter((race.kind, one.status, one.reason, one.retry_after_s) for race in races for one in race.otherwise)
    for (kind, status, reason, retry_after_s), count in others.most_common(10):
        said = f"{kind}: {count} answers with status {status}, reason {reason!r}, retry-after {retry_after_s}"
        console.print(said, style="red", markup=False)
    served, refused = sum(len(race.served) for race in races), sum(len(race.refused) for race in races)
    share = least_share(races, entries)
    figures = Figures(
        tuple(limits.values()), tuple(budgets.values()), served, refused, others.total(), share, tuple(problems)
    )
    return finish(console, verdict(figures))


if __name__ == "__main__":
    arguments = [int(one) for one in sys.argv[1:]]
    raise SystemExit(uvloop.run(main(*arguments, *(1, 4)[len(arguments) :])))

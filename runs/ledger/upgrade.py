"""This version takes over the ledger of version 0.1, and both share one. See runs/upgrade.sh."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import uvloop
from rich.console import Console
from rich.table import Table

from headway.local.engine_process import free_port
from runs.ledger.releases import NotStarted, Release, ReleasedGateway, both_releases
from runs.ledger.torture_judge import Sent, Witness, checkpoint_tokens
from runs.ledger.upgrade_callers import Clients, status_of
from runs.ledger.upgrade_judge import (
    ENTRIES,
    SLICES,
    Findings,
    Row,
    as_rows,
    judge_bill,
    judge_budgets,
    judge_calls,
    judge_spool,
    judge_unchanged,
    read_spool,
)
from runs.ledger.upgrade_stores import Database, PostgresDatabases, SQLiteFiles
from runs.measure.streams import scripted
from runs.measure.verdict import Verdict, at_least, at_most, finish, none_of

console = Console(width=120)
EPISODES, SEED = 6, 1
STEP_S = {"quick": 0.005, "slow": 0.020}
BUDGET = 0.05  # so small that it is used up
# How the gateway of 0.1 ends before it is replaced.
WAYS = ("killed", "killed, store away", "ended", "killed twice", "ended, store away", "killed twice, store away")


@dataclass
class Keys:
    """Secrets of keys that version 0.1 made."""

    good: list[str]
    limited: str  # to two tiers
    revoked: str
    budgets: dict[str, int]  # by key id, in micro-units


@dataclass
class Lane:
    """One kind of store, with engines of its own."""

    folder: Path
    database: Database
    engines: dict[str, Witness]  # by model
    releases: tuple[Release, Release]
    models: str  # of headway.toml

    def gateway(self, episode: str, name: str) -> ReleasedGateway:
        return ReleasedGateway(self.folder, f"{episode}-{name}", self.database.url(episode), self.models)

    def rows(self, episode: str) -> list[Row]:
        return as_rows(self.database.read(episode, ENTRIES))

    def sent(self) -> dict[str, Sent]:
        for witness in self.engines.values():
            witness.read()
        return {name: sent for witness in self.engines.values() for name, sent in witness.requests.items()}


@dataclass
class Figures:
    findings: Findings = field(default_factory=Findings)
    takeovers: Counter[str] = field(default_factory=Counter)  # of tables and spools of 0.1, by how its gateway ended
    shared: int = 0  # gateways of 0.1 that served on a store of this version
    on_new_spool: Counter[str] = field(default_factory=Counter)  # what 0.1 said about a spool of this version
    old_verify: Counter[str] = field(default_factory=Counter)  # what its `headway ledger verify` said at the end
    statuses: Counter[str] = field(default_factory=Counter)


# --- an episode ------------------------------------------------------------------------------------------------------


@dataclass
class Episode:
    name: str
    way: str
    lane: Lane
    keys: Keys
    chance: random.Random
    figures: Figures

    def __post_init__(self) -> None:
        self.found = Findings()
        self.clients = Clients([*self.keys.good, self.keys.limited], random.Random(self.chance.getrandbits(32)))
        self.first, self.second = self.lane.gateway(self.name, "one"), self.lane.gateway(self.name, "two")
        self.old, self.new = self.lane.releases

    async def play(self) -> None:
        engines_before = set(self.lane.sent())
        await self.serve_with_old()
        await self.take_over()
        await self.share_the_store()
        await self.give_old_a_new_spool()
        await self.take_over_both()
        await self.judge(engines_before)
        self.figures.findings.add(self.found)
        self.figures.statuses += self.clients.statuses

    async def end(self) -> None:
        for gateway in (self.first, self.second):
            await gateway.end(signal.SIGKILL)

    async def serve_with_old(self) -> None:
        """0.1 serves, and ends in one of the ways."""
        await self.first.start(self.old)
        self.clients.start([(self.old.name, self.first.port)])
        await self.clients.until(self.chance.randint(80, 200))
        if "twice" in self.way:
            await self.first.end(signal.SIGKILL)
            await self.first.start(self.old)
            await self.clients.until(self.chance.randint(40, 100))
        if "away" in self.way:
            await asyncio.to_thread(self.lane.database.go_away, self.name)
            await self.clients.until(self.chance.randint(60, 150))
        await self.first.end(signal.SIGTERM if self.way.startswith("ended") else signal.SIGKILL)
        await self.clients.stop()
        await asyncio.to_thread(self.lane.database.come_back)
        self.lane.sent()

    async def take_over(self) -> None:
        """This version starts on the same configuration, tables and spool, and serves."""
        left, before = read_spool(self.first.spool), self.lane.rows(self.name)
        judge_bill(self.found, "0.1, before", await self.old.bill(self.first.config), before)
        await self.first.start(self.new)
        self.figures.takeovers[self.way] += 1
        await self.check_keys()
        self.clients.start([(self.new.name, self.first.port)])
        await self.clients.until(self.chance.randint(60, 120))
        await self.clients.stop()
        await self.first.end(signal.SIGTERM)
        after = self.lane.rows(self.name)
        judge_unchanged(self.found, before, after)
        judge_spool(self.found, left, before, after)

    async def check_keys(self) -> None:
        expected = [(key, "standard", 200) for key in self.keys.good[:3]]  # the first three have no budget
        expected += [(self.keys.limited, "fast", 200), (self.keys.limited, "flex", 403)]
        expected += [(self.keys.revoked, "standard", 401)]
        for key, tier, status in expected:
            if (answer := await status_of(self.first.port, key, tier)) != status:
                self.found.keys.append(f"{self.name}: {answer} where {status} is right: {self.first.last_words()}")

    async def share_the_store(self) -> None:
        """A gateway of 0.1 on the migrated tables, alone and beside this version, until both are killed."""
        try:
            await self.second.start(self.old)
        except NotStarted as refusal:
            self.found.keys.append(f"0.1 does not start on migrated tables: {refusal}")
            return
        self.figures.shared += 1
        self.clients.start([(self.old.name, self.second.port)])
        await self.clients.until(self.chance.randint(40, 80))
        await self.clients.stop()
        await self.first.start(self.new)
        self.clients.start([(self.old.name, self.second.port), (self.new.name, self.first.port)])
        await self.clients.until(self.chance.randint(80, 160))
        if self.chance.random() < 0.5:
            await asyncio.to_thread(self.lane.database.go_away, self.name)
            await self.clients.until(self.chance.randint(40, 100))
        await asyncio.gather(self.first.end(signal.SIGKILL), self.second.end(signal.SIGKILL))
        await self.clients.stop()
        await asyncio.to_thread(self.lane.database.come_back)
        self.lane.sent()

    async def give_old_a_new_spool(self) -> None:
        """0.1 on a spool in which this version left entries and running calls."""
        try:
            await self.first.start(self.old)
        except NotStarted as refusal:
            self.figures.on_new_spool[re.sub(r"gw-\w+", "gw-...", str(refusal))] += 1
            return
        self.figures.on_new_spool["it started"] += 1
        self.clients.start([(self.old.name, self.first.port)])
        await self.clients.until(30)
        await self.clients.stop()
        await self.first.end(signal.SIGTERM)

    async def take_over_both(self) -> None:
        """This version again, on both spools: its own, and that of the gateway of 0.1 which shared the store."""
        lefts, before = [read_spool(one.spool) for one in (self.first, self.second)], self.lane.rows(self.name)
        await asyncio.gather(self.first.start(self.new), self.second.start(self.new))
        self.figures.takeovers["killed on tables of this version"] += 1
        self.clients.start([(self.new.name, self.first.port), (self.new.name, self.second.port)])
        await self.clients.until(self.chance.randint(40, 80))
        await self.clients.stop()
        await asyncio.gather(self.first.end(signal.SIGTERM), self.second.end(signal.SIGTERM))
        # The next runs settle the budgets of these.
        await asyncio.gather(self.first.start(self.new), self.second.start(self.new))
        await asyncio.gather(self.first.end(signal.SIGTERM), self.second.end(signal.SIGTERM))
        after = self.lane.rows(self.name)
        judge_unchanged(self.found, before, after)
        for left in lefts:
            judge_spool(self.found, left, before, after)

    async def judge(self, earlier: Collection[str]) -> None:
        rows = self.lane.rows(self.name)
        sent = {name: one for name, one in self.lane.sent().items() if name not in earlier}
        judge_calls(self.found, rows, sent, self.clients.told)
        slices = self.lane.database.read(self.name, SLICES)
        judge_budgets(self.found, slices, rows, self.keys.budgets)
        for release in self.lane.releases:
            judge_bill(self.found, release.name, await release.bill(self.first.config), rows)
        _, words = await self.old.verify(self.first.config)
        self.figures.old_verify[words] += 1
        is_right, words = await self.new.verify(self.first.config)
        if not is_right:
            self.found.bills.append(f"headway ledger verify: {words}")


# --- the run ---------------------------------------------------------------------------------------------------------


def make_keys(lane: Lane, template: str) -> Keys:
    """Make the template of the episodes' databases: keys, by the commands of 0.1."""
    release, config = lane.releases[0], str(lane.gateway(template, "keys").config)

    def secret(*arguments: str) -> tuple[str, str]:
        found = re.search(r"(key-\w+).*?\n(\S+)", release.output("keys", *arguments, "--config", config))
        assert found is not None
        return found[1], found[2]

    limited = secret("create", "--tier", "standard", "--tier", "fast", "--fast-requests", "100000")
    name, before = secret("create", "--name", "rotated")
    _, after = secret("rotate", name, "--keep-old-hours", "24")
    revoked, of_revoked = secret("create")
    release.output("keys", "revoke", revoked, "--config", config)
    frugal, of_frugal = secret("create", "--budget-day", str(BUDGET), "--budget-month", str(BUDGET))
    _, plain = secret("create", "--name", "plain")
    return Keys([plain, before, after, of_frugal], limited[1], of_revoked, {frugal: round(BUDGET * 1e6)})


async def play(lane: Lane, episodes: int, seed: int, figures: Figures) -> None:
    keys = await asyncio.to_thread(make_keys, lane, "template")
    for number in range(episodes):
        name = f"episode{number + 1}"
        await asyncio.to_thread(lane.database.copy, "template", name)
        chance = random.Random(f"{lane.database.kind} {seed} {number}")
        episode = Episode(name, WAYS[number % len(WAYS)], lane, keys, chance, figures)
        try:
            await episode.play()
        finally:
            await episode.end()
        found = episode.found
        console.print(
            f"{lane.database.kind} {name}, 0.1 {episode.way}: {found.calls} calls, {found.from_spools} entries "
            f"only in spools, {found.killed} calls running, {len(found.problems)} problems",
            highlight=False,
        )


@contextmanager
def lanes(folder: Path) -> Iterator[list[Lane]]:
    with ExitStack() as stack:
        releases = both_releases(folder)
        found = []
        for database in (SQLiteFiles(folder), PostgresDatabases()):
            stack.callback(database.remove)
            engines, models = {}, ""
            for model, step_s in STEP_S.items():
                port = free_port()
                stack.enter_context(
                    scripted(port, model=model, first_token_ms=5, step_ms=f"1:{step_s * 1000:g}", seats=256)
                )
                engines[model] = Witness(f"http://127.0.0.1:{port}")
                models += model_table(model, f"http://127.0.0.1:{port}")
            home = folder / database.kind
            home.mkdir()
            found.append(Lane(home, database, engines, releases, models))
        yield found


def model_table(model: str, url: str) -> str:
    """Of headway.toml, as version 0.1 reads it. The slow engine has a curve that is too good, so floors are missed."""
    return (
        f'[[models]]\nname = "{model}"\nprice = {{ input = 1.0, output = 10.0, replica_hour = 2.0 }}\n'
        '[[models.tiers]]\nname = "standard"\n[[models.tiers]]\nname = "flex"\nprice_multiple = 0.5\n'
        '[[models.tiers]]\nname = "fast"\nfloor_tps = 80.0\nprice_multiple = 2.1\nmax_hold_s = 0.5\n'
        f'[[models.replicas]]\nurl = "{url}"\nseats = 64\ncurve = [[1, 190.0], [8, 180.0], [64, 120.0]]\n'
    )


def verdict(figures: Figures) -> Verdict:
    found, takeovers = figures.findings, figures.takeovers.total()
    wrong = len(found.inexact) + len(found.over_billed)
    bars = (
        at_least("takeovers", takeovers, 20, "d"),
        at_least("calls in the ledger", found.calls, 3_000, ",d"),
        at_least("complete calls", found.complete, 1_500, ",d"),
        at_least("calls with a refund", found.refunded, 20, ",d"),
        at_least("entries in spools that the store did not have", found.from_spools, 1_000, ",d"),
        at_least("calls that were running when their gateway was killed", found.killed, 100, ",d"),
        at_least("gateways of 0.1 that served on tables of this version", figures.shared, 10, "d"),
        none_of("0.1 started on a spool of this version", figures.on_new_spool["it started"]),
        none_of("entries or calls lost", len(found.lost)),
        none_of("entries twice", len(found.doubled)),
        none_of("amounts or tokens not exact", len(found.inexact)),
        none_of("over-billed", len(found.over_billed)),
        none_of("entries changed", len(found.changed)),
        none_of("budgets whose slices are not what was spent", len(found.budgets)),
        none_of("bills that differ", len(found.bills)),
        none_of("keys that are not as before", len(found.keys)),
        at_most(
            "tokens not billed, most of a killed stream", found.killed_low, checkpoint_tokens(min(STEP_S.values())), "d"
        ),
    )
    figure = (
        f"{takeovers} takeovers of 0.1's tables and spools, {found.calls:,} calls, {found.from_spools:,} entries only "
        f"in spools: {len(found.lost)} lost, {len(found.doubled)} twice, {wrong} not exact; {figures.shared} gateways "
        f"of 0.1 on tables of this version, {figures.on_new_spool.total()} refused its spools"
    )
    return Verdict(figure, bars)


def show(figures: Figures) -> None:
    table = Table("how 0.1 ended", "takeovers")
    for way, count in figures.takeovers.items():
        table.add_row(way, str(count))
    console.print(table)
    console.print("what clients saw:", dict(sorted(figures.statuses.items())))
    for words, count in figures.on_new_spool.items():
        console.print(f"0.1 on a spool of this version, {count} times: {words}", highlight=False, markup=False)
    for words, count in figures.old_verify.items():
        console.print(f"0.1's `headway ledger verify`, {count} times: {words}", highlight=False, markup=False)
    for problem in figures.findings.problems[:20]:
        console.print(problem, style="red", highlight=False, markup=False)


async def measure(episodes: int, seed: int) -> Figures:
    figures = Figures()
    with tempfile.TemporaryDirectory(prefix="headway-upgrade-") as name, lanes(Path(name)) as found:
        await asyncio.gather(*[play(lane, episodes, seed, figures) for lane in found])
    return figures


def main(episodes: str = str(EPISODES), seed: str = str(SEED)) -> int:
    console.print(f"seed {seed}; `runs/upgrade.sh {episodes} {seed}` draws the same moments again")
    figures = uvloop.run(measure(int(episodes), int(seed)))
    show(figures)
    return finish(console, verdict(figures))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

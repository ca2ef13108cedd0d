"""Every bar of every run can fail: each verdict is given figures that pass, and figures that miss each of its bars."""

from __future__ import annotations

import io
import math
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from headway.evals.shares import Share
from runs.bench import frontier, referee, truth
from runs.cell import dispatcher, end_to_end, limits, relays
from runs.cell.races import Reached
from runs.clients import run as clients
from runs.continuation import kills
from runs.continuation.drains import Drained
from runs.continuation.room import MadeRoom
from runs.continuation.service import PRICE, Told
from runs.engine import long_prompts, mixed_prompts, noise, speculation
from runs.express import fast_mode, moves, profiles, report, rule
from runs.express.demand import CELLS, Demand
from runs.failover import run as failover
from runs.fleet import adapters, discovery, other_engines, real_engines, reload, rolling, scaling_live, upgrade
from runs.fleet import torture as fleet
from runs.front_door import console_pictures
from runs.gateway import console_cost, ids_cost, leaks, neighbours, relay_change, soak, tax, websocket
from runs.gateway.tenant import HOSTILE, Work
from runs.hostile import run as hostile
from runs.hostile.live import Left, LiveFigures
from runs.ledger import budget_race, cost, outages, torture
from runs.ledger import upgrade as ledger_upgrade
from runs.ledger.torture_judge import Judgement
from runs.ledger.upgrade_judge import Findings
from runs.measure.growth import Trend
from runs.measure.verdict import Bar, Verdict, at_least, at_most, finish, none_of
from runs.mistakes import budget, by_speed
from runs.mistakes.killed import Killed
from runs.prefixes import cost as prefix_cost
from runs.prefixes import run as prefixes
from runs.simulation import fidelity, internet_scale, parity, scaling, speed
from runs.simulation.scaled_day import Row
from runs.students import distill, drafter
from runs.torture import on_vllm, overload
from runs.torture import run as whole
from runs.torture import soak as soak_cell
from runs.torture.overload_judge import Point
from runs.torture.overload_play import BURSTS, FLOOD, LOADS, SLOW, STORM, TEN
from runs.torture.soak_cell import PROCESSES
from runs.two_profiles import compare as two_profiles

SCRIPTS = sorted((Path(__file__).parents[2] / "runs").glob("*.sh"))


@dataclass(frozen=True)
class Case:
    verdict: Callable[[Any], Verdict]
    good: Any
    bad: list[Any]  # each misses a bar, and together they miss every bar there is


def each(good: Any, **worse: Any) -> list[Any]:
    """The good figures with one of them worse, for each that is named."""
    return [replace(good, **{name: value}) for name, value in worse.items()]


def bench_truth() -> Case:
    good = {streams: [truth.Round(1.003, 1.004, 0.2, valid=True)] * 3 for streams, _ in truth.SETTINGS}
    bad: list[Any] = []
    for streams in good:
        bad.append({**good, streams: [truth.Round(1.02, 1.004, 0.2, valid=True)] * 3})
        bad.append({**good, streams: [truth.Round(1.003, 0.98, 0.2, valid=True)] * 3})
    return Case(truth.verdict, good, bad)


def referee_case() -> Case:
    turn = referee.Turn(200.0, 10.0, 4, 10.0)
    good = {(tool, streams): [turn] * 3 for tool in ("Headway", "GuideLLM") for streams in referee.GENERATIONS}
    bad: list[Any] = [{**good, ("Headway", 1): [replace(turn, problems=("1 calls failed",)), turn, turn]}]
    for streams in referee.GENERATIONS:
        bad.append({**good, ("GuideLLM", streams): [replace(turn, ttft_ms=210.0)] * 3})
        bad.append({**good, ("GuideLLM", streams): [replace(turn, tpot_ms=9.5)] * 3})
    return Case(referee.verdict, good, bad)


def frontier_case() -> Case:
    good = frontier.Figures(held_out=4, mape=0.047)
    return Case(frontier.verdict, good, [*each(good, mape=0.051), frontier.Figures(0, None)])


def tax_case() -> Case:
    good = tax.Figures({1: 1.005, 8: 1.029, 32: 0.988}, 0.95, 2.35, 0.3, 48_039)
    bad = [replace(good, throughput={**good.throughput, streams: 0.96}) for streams in good.throughput]
    return Case(tax.verdict, good, [*bad, *each(good, added_p50_ms=1.01, added_p99_ms=5.1, tokens_per_cpu_s=math.nan)])


def websocket_case() -> Case:
    good = websocket.Figures(0.4, 0.08, websocket.Idle(16.0, 1.0, 1.0))
    idle = each(good.idle, kib_each=70.0, kept_before=0.9, kept_beside=0.9)
    return Case(
        websocket.verdict, good, [*each(good, overhead=0.6, bytes_sent=0.3), *[replace(good, idle=one) for one in idle]]
    )


def dispatcher_case() -> Case:
    good = dispatcher.Figures(21_000, 0.0005, 0.004, 0.5, 0.6, 3_000.0, 2_000.0, is_compiled=True)
    return Case(dispatcher.verdict, good, each(good, calls_per_cpu_s=19_999, boarding_p99_s=0.0051))


def relays_case() -> Case:
    good = relays.Figures(0.2, 0.5, [1.0, 1.03, 1.2], 50.0, 0.3)
    bad = {"boarding_p50_ms": 0.31, "boarding_p99_above_ms": 1.1, "us_per_call": 61.0, "added_p50_ms": 0.41}
    return Case(relays.verdict, good, each(good, **bad, cpu_ratios=[1.0, 1.06, 1.07]))


def cell_limits_case() -> Case:
    race = limits.LimitRace((Reached(700.0, 764), Reached(2.0, 890)), early=0)
    money = limits.BudgetRace(limits.BUDGET - 900, dearest=1_500)
    good = limits.Figures((race, race), (money,), 1_200, 7_000, 0, 0.21, ())
    races = [replace(race, reached=(*race.reached, Reached(765.0, 764))), replace(race, reached=race.reached[:1])]
    races.append(replace(race, early=1))
    budgets = [replace(money, billed=limits.BUDGET + 1), replace(money, billed=limits.BUDGET - 8_000)]
    bad = [replace(good, limits=(race, one)) for one in races]
    bad += [replace(good, budgets=(money, one)) for one in budgets]
    bad += [replace(good, limits=()), replace(good, budgets=())]
    return Case(limits.verdict, good, [*bad, *each(good, otherwise=1, least_share=0.09, problems=("billed twice",))])


def e2e_relays_case() -> Case:
    good = end_to_end.Figures(141, Counter(passed=141), 90, with_relays=6, without_relays=0)
    outcomes = (Counter(passed=140, failed=1), Counter(passed=140, skipped=1), Counter(passed=140))
    bad = [replace(good, outcomes=one) for one in outcomes]
    return Case(end_to_end.verdict, good, [*bad, *each(good, through=0, with_relays=0, without_relays=1)])


def failover_case() -> Case:
    good = failover.Figures(
        wanted=500, faults=500, calls=25_000, relay_stops=100, crowds=0, explained=1, cut=0, filled=0.3,
        resumed_s=[1.4, 1.6], resumed_etcd_s=[2.4], away_ratio=1.1, events=90_000,
    )  # fmt: skip
    counts = ("crowds", "cut", "stuck", "hanging", "unaccounted", "wrong_books", "spooled", "exits", "differences")
    worse = {"faults": 499, "explained": 2, "filled": 0.05, "resumed_s": [2.1], "away_ratio": 2.1}
    bad = each(good, **worse, **dict.fromkeys(counts, 1), unbilled=failover.max_unbilled() + 1, events=24_999)
    return Case(failover.verdict, good, [*bad, *each(good, resumed_s=[], away_ratio=float("nan"))])


def fleet_case() -> Case:
    good = fleet.FleetFigures(
        wanted=300, faults=300, calls=10_000, unended=0, crowds=0, filled=0.3, cut=0, hanging=0, stuck=0, broken=0,
        rerouted_s=0.1, deaths=400, wrong_books=0, unbilled=3, spooled=0, exits=0, events=30_000, differences=0,
    )  # fmt: skip
    counts = ("unended", "crowds", "cut", "hanging", "stuck", "broken", "wrong_books", "spooled", "exits")
    bad = each(good, **dict.fromkeys(counts, 1), differences=1, faults=299, filled=0.05, rerouted_s=0.6)
    bad += each(good, rerouted_s=float("nan"), unbilled=fleet.max_unbilled() + 1, events=9_999)
    return Case(fleet.verdict, good, bad)


def fleet_vllm_case() -> Case:
    good = real_engines.RealFigures(outages=4, back=4, fast=100, not_as_said=0, served_after=10, left=0)
    return Case(
        real_engines.verdict, good, each(good, outages=3, back=3, fast=19, not_as_said=1, served_after=3, left=1)
    )


def rolling_upgrade_case() -> Case:
    good = upgrade.UpgradeFigures(replaced=10, served=5_000, failed=0, cut=0, fast=1_000, missed=5, seconds=200.0)
    bad = each(good, replaced=9, failed=1, cut=1, fast=199, missed=6, seconds=1_000.0)
    return Case(upgrade.verdict, good, [*bad, *each(good, fast=0)])


def reload_case() -> Case:
    one = reload.Figures(
        changes=1_000, served=9_000, refused=3, lost=0, too_many=0, unreported=0, invalid=100, invalid_taken=0,
        replay_differs=0, boarded=9_000,
    )  # fmt: skip
    counts = dict.fromkeys(("lost", "too_many", "unreported", "invalid_taken", "replay_differs"), 1)
    bad = each(one, **counts, served=999)
    return Case(reload.verdict, {"one": one}, [{"one": figures} for figures in bad])


def discovery_case() -> Case:
    faults = {"fails": 0, "is away": 0, "is empty": 0, "lies": 0}
    good = discovery.Figures(20, late=0, served=3_000, lost=0, closed_by=faults, stranger_calls=0, most_running=200)
    bad = [replace(good, closed_by={**faults, fault: 1}) for fault in faults]
    worse = {"late": 1, "served": 199, "lost": 1, "stranger_calls": 1, "most_running": 149, "closed_by": {"fails": 0}}
    return Case(discovery.verdict, good, [*bad, *each(good, **worse)])


def rolling_restart_case() -> Case:
    one = rolling.Figures(restarts=8, served=1_000, failed=0, cut=0, fast=100, missed=0)
    bad = each(one, restarts=1, failed=1, cut=1, fast=7, missed=1)
    return Case(rolling.verdict, {"vLLM": one}, [{"vLLM": figures} for figures in bad])


def other_engines_case() -> Case:
    good = other_engines.Figures(
        asked=12, wrong=[], most_aboard=2, overflown=187, here=53, unnamed=0, tokens_off=0, amounts_off=0,
        budget_spent=0.96, leaks=0,
    )  # fmt: skip
    worse = {"asked": 11, "wrong": ["a stream has text"], "most_aboard": 3, "overflown": 49, "here": 9}
    counts = dict.fromkeys(("unnamed", "tokens_off", "amounts_off", "leaks"), 1)
    bad = [*each(good, **worse, **counts, budget_spent=1.01), replace(good, budget_spent=0.5)]
    return Case(other_engines.verdict, good, bad)


def adapters_case() -> Case:
    served = dict.fromkeys(adapters.MODELS, 30)
    good = adapters.Figures(served, failed=0, missed=0, fast=18, most_running=8, same_answers=0, told_apart=3)
    bad = [replace(good, served={**served, model: 9}) for model in served]
    bad += each(good, failed=1, missed=1, fast=4, most_running=9, same_answers=1, told_apart=2)
    return Case(adapters.verdict, good, [*bad, replace(good, most_running=6)])


def leaks_case() -> Case:
    good = leaks.Figures(10_032, 0, 0, 0, 0, 0, 0, leaks.Sockets(to_engine=1, with_clients=0, others=14))
    counts = dict.fromkeys(("calls_in_core", "seats_taken", "calls_held", "on_engine", "tasks_more", "files_more"), 1)
    sockets = [replace(good, sockets=one) for one in (leaks.Sockets(2, 0, 14), leaks.Sockets(1, 1, 14))]
    return Case(leaks.verdict, good, [*each(good, clients=0, **counts), *sockets])


def neighbours_case() -> Case:
    honest = neighbours.Turn(1_900.0, 0, Work(24_000, 120))
    hostile = neighbours.Turn(1_850.0, 0, Work(hostile=40, ended={"left": 40}))
    pairs = [neighbours.Pair(honest, hostile)] * 3
    good = dict.fromkeys(HOSTILE, pairs)
    slower, idle = replace(hostile, tokens_per_s=1_700.0), replace(hostile, neighbour=Work(24_000, 120, hostile=3))
    bad: list[Any] = []
    for kind in HOSTILE:
        bad.append({**good, kind: [pairs[0], *[neighbours.Pair(honest, slower)] * 2]})
        bad.append({**good, kind: [*pairs, neighbours.Pair(honest, idle)]})  # one turn without hostile work is enough
    return Case(neighbours.verdict, good, bad)


def soak_case() -> Case:
    flat = Trend(0.4, -1.1, 1.9)
    ended = Counter(answered=64_000, left=3_300)
    good = soak.Figures(60, 0.7, ended, Trend(1.2, 0.8, 1.6), flat, flat, flat, 0, 0, 0)
    grows = Trend(6.0, 0.1, 12.0)
    few_left, cut = Counter(answered=64_000, left=2_000), Counter(answered=64_000, left=3_300, cut=1)
    bad = each(good, load=0.6, files=grows, tasks=grows, seats=grows, files_more=1, tasks_more=1, seats_left=1)
    bad += each(good, memory=Trend(2.1, -9.0, 13.0)) + each(good, ended=few_left) + each(good, ended=cut)
    nothing = Trend(math.nan, math.nan, math.nan)
    return Case(soak.verdict, good, [*bad, *each(good, memory=nothing, files=nothing)])


def soak_cell_case() -> Case:
    flat, more = Trend(0.4, -0.1, 0.9), {"file descriptors": 0, "threads": -1, "tasks": 0}
    memory, lag_ms = dict.fromkeys(PROCESSES, flat), {"relay-1": 4.0, "dispatcher-1": -0.2}
    good = soak_cell.Figures(120, 0, 115_000, 1.0, 0.4, memory, lag_ms, more, 0, 0, 0, 0, 0)
    bad = each(good, minutes=119, of_planned=0.9, seats_left=1, held_left=1, engines_left=1, badly_ended=1, findings=1)
    for name in memory:
        bad += each(good, memory={**memory, name: Trend(2.01, -1.0, 3.0)})
        bad += each(good, memory={**memory, name: Trend(math.nan, math.nan, math.nan)})
    bad += [replace(good, lag_above_ms={**lag_ms, name: 20.1}) for name in lag_ms]
    bad += [replace(good, more={**more, what: 1}) for what in more]
    return Case(soak_cell.verdict, good, bad)


def hostile_case() -> Case:
    live = LiveFigures(300_000, {}, Left(0, 0, 0, 0), 0, 2, 0, 0, (), 4.2, 12.0)
    good = hostile.Figures(hostile.Wanted(10_000_000, 20_000, 300_000), 10_000_000, 20_000, 0, 0, live)
    worse = each(
        live, requests=299_999, problems={"an unexpected 500": 1}, tracebacks=1, restarts=1, missing=1, left_in_spool=1,
        ledger_problems=("billed twice",), lag_ms=30.1, grown_mb=50.1,
    )  # fmt: skip
    worse += [
        replace(live, left=left) for left in (Left(1, 0, 0, 0), Left(0, 1, 0, 0), Left(0, 0, 1, 0), Left(0, 0, 0, 1))
    ]
    bad = [
        *each(good, inputs=9_999_999, fewest_examples=19_999, failures=1, tasks=1),
        *[replace(good, live=one) for one in worse],
    ]
    return Case(hostile.verdict, good, bad)


def clients_case() -> Case:
    row = clients.Row("openai-python", "3.49.0", "tool loop", "passed", calls=3)
    good = [row, *[replace(row, client=name) for name in ("anthropic-python", "claude-code", "codex")]]
    good.append(replace(row, client="aider", outcome="not installed"))  # named in the table, and not a failure
    bad = [[replace(row, outcome="failed"), *good], *[good[:number] + good[number + 1 :] for number in range(4)]]
    bad.append([replace(row, outcome="not installed"), *good[1:]])
    return Case(clients.verdict, good, bad)


def budget_race_case() -> Case:
    fair = budget_race.Round(served=250, over_budget=250, billed=budget_race.BUDGET)
    good = budget_race.Figures((fair,) * 20, ())
    cost = budget_race.COST
    rounds = [
        budget_race.Round(251, 249, budget_race.BUDGET + cost),
        budget_race.Round(249, 251, budget_race.BUDGET - cost),
        budget_race.Round(250, 249, budget_race.BUDGET),
        budget_race.Round(251, 249, budget_race.BUDGET),
    ]
    bad = [replace(good, rounds=(fair, one)) for one in rounds]
    return Case(budget_race.verdict, good, [*bad, *each(good, problems=("reserved twice",))])


def ledger_cost() -> Case:
    good = cost.Figures((0.11, 0.13, 0.17), (0.2, 0.21, 0.29))
    return Case(cost.verdict, good, each(good, first_token_ms=(0.1, 0.4, 0.5), whole_answer_ms=(0.4, 0.44, 0.51)))


def ledger_outages() -> Case:
    good = outages.Figures(30.0, 64.0, (outages.Outage(4_900, 0.5, 66.0),) * 20, 19_715, 0, 19_715, ())
    grown = (*good.outages, outages.Outage(4_900, 0.5, 68.0))
    return Case(
        outages.verdict, good, each(good, not_served=1, in_ledger=19_714, problems=("never closed",), outages=grown)
    )


def torture_of_the_whole() -> Case:
    faults = Counter({f"kind {number}": 500 for number in range(20)})
    good = whole.Figures(50, 1_100_000, 1_000_000, 1_050_000, 200_000, 900, faults)
    wrong = (
        "lost",
        "doubled",
        "over-billed",
        "wrong refund",
        "missed, not refunded",
        "streams above a limit",
        "too late",
    )
    found = [Counter({what: 1}) for what in (*wrong, "cut", "left over")]
    few = [Counter({f"kind {number}": 600 for number in range(19)}), Counter({**faults, "kind 0": 5_000})]
    few.append(Counter({**faults, "kind 0": 499}))
    bad = [replace(good, findings=one) for one in found] + [replace(good, faults=one) for one in few]
    explained = Counter({"streams above a limit": 1})
    return Case(whole.verdict, good, [*bad, *each(good, streams=999_999, in_books=999_999, explained=explained)])


def torture_on_vllm() -> Case:
    faults = Counter({on_vllm.KILLED: 16, on_vllm.STOPPED: 88})
    good = whole.Figures(4, 2_500, 2_100, 2_300, 500, 30, faults)
    wrong = (
        "lost",
        "doubled",
        "over-billed",
        "wrong refund",
        "missed, not refunded",
        "streams above a limit",
        "too late",
    )
    bad = [replace(good, findings=Counter({what: 1})) for what in (*wrong, "cut", "left over")]
    few = (Counter({**faults, on_vllm.KILLED: 14, on_vllm.STOPPED: 90}), Counter({**faults, on_vllm.STOPPED: 83}))
    bad += [replace(good, faults=one) for one in few]
    bad += each(good, streams=1_999, in_books=2_099, refunded=0, explained=Counter({"streams above a limit": 1}))
    return Case(on_vllm.verdict, good, bad)


def ledger_torture() -> Case:
    judged = Judgement(calls=100_138, entries=400_000, killed_low=[28, 3])
    good = torture.Figures(100_002, 100_000, 1_088, 1_000, judged)
    one = ["call-1"]
    worse: dict[str, Any] = {"lost": one, "over_billed": one, "wrong_when_complete": one, "problems": one}
    worse |= {"killed_low": [43, 3], "calls": 100_001}
    bad = [replace(good, judgement=replace(judged, **{name: value})) for name, value in worse.items()]
    return Case(torture.verdict, good, [*each(good, streams=99_999, faults=999), *bad])


def ledger_upgrade_case() -> Case:
    found = Findings(calls=7_000, complete=5_000, refunded=200, killed=450, killed_low=20, from_spools=15_000)
    good = ledger_upgrade.Figures(found, Counter({"killed": 12, "ended": 12}), shared=12)
    one = ["call-1"]
    worse: dict[str, Any] = dict.fromkeys(
        ("lost", "doubled", "inexact", "over_billed", "changed", "budgets", "bills", "keys"), one
    )
    worse |= {"calls": 2_999, "complete": 1_499, "refunded": 19, "killed": 99, "killed_low": 43, "from_spools": 999}
    bad = [replace(good, findings=replace(found, **{name: value})) for name, value in worse.items()]
    started = Counter({"it started": 1})
    return Case(
        ledger_upgrade.verdict,
        good,
        [*bad, *each(good, takeovers=Counter({"killed": 19}), shared=9, on_new_spool=started)],
    )


def express_live() -> Case:
    good = report.Figures(
        fast_calls=2_400, limit=4, found=2_219, steps=150_418, requests_above=0, compared=1_976, differences=0,
        without_record=0, unexplained=0, cut_without_fault=0, unaccounted=0, left_over=0, kinds_of_faults=5,
    )  # fmt: skip
    counts = ("differences", "without_record", "unexplained", "cut_without_fault", "unaccounted", "left_over")
    worse = dict.fromkeys(counts, 1)
    return Case(report.verdict, good, each(good, found=0, requests_above=1, compared=0, kinds_of_faults=4, **worse))


def express_rule() -> Case:
    split = rule.Row(kept=1.0, wait_p95_s=0.11, refused=0.0, standard_tps=50_000)
    ours = replace(split, wait_p95_s=0.4, standard_tps=70_000)
    compared = rule.Compared(ours, {24: replace(split, wait_p95_s=3.1, standard_tps=60_000), 27: split})
    good = rule.Figures(dict.fromkeys(CELLS, compared), compared, dict.fromkeys(rule.NOISY, [0.996] * 5), 1.0)
    worse = each(ours, kept=0.99, wait_p95_s=0.51, standard_tps=49_000)
    bad: list[Any] = [
        replace(good, cells={**good.cells, cell: replace(compared, rule=row)}) for cell in CELLS for row in worse
    ]
    at_end = replace(compared, splits={49: split})
    bad.append(replace(good, cells={**good.cells, CELLS[0]: at_end}))
    noisy = good.kept_with_noise
    bad += [replace(good, kept_with_noise={**noisy, cell: [0.996, 0.99]}) for cell in rule.NOISY]
    return Case(rule.verdict, good, [*bad, replace(good, without_demand=0.99)])


def engine_noise_case() -> Case:
    good = [1.0, 1.2, 0.9] * 400
    return Case(noise.verdict, good, [good[:900]])


def fast_mode_case() -> Case:
    side = fast_mode.Side(620, 617, 0, 13.1, 4.0, 0.3, 400.0, 20.0, 64)
    good = fast_mode.Figures(side, side)
    worse = each(side, kept=606, fast_tps=9.9, downgraded=7, first_token_p95_s=0.46, standard_tps=math.nan)
    bad = [replace(good, ours=one) for one in worse]
    return Case(fast_mode.verdict, good, [*bad, replace(good, ours=replace(side, fast=0, kept=0, fast_tps=math.nan))])


def internet_scale_case() -> Case:
    fleets: dict[float, int | None] = {0.0: 39, 0.1: 41}
    good = internet_scale.Figures(1_400_000, 10_000, 10, 300.0, 0.9997, 0, 0, 0.0, 1.75, 2.3, 0.0, fleets)
    bad = each(
        good,
        kept=0.98,
        over_limit=1,
        cut=1,
        kept_lost=0.002,
        resumed_s=2.1,
        wait_p99_ms=6.0,
        still_refused=0.6,
        fleets={**fleets, 0.1: None},
    )
    return Case(
        internet_scale.verdict, good, [*bad, replace(good, kept=math.nan), replace(good, still_refused=math.nan)]
    )


def long_prompts_case() -> Case:
    good = {
        2048: long_prompts.Row(2_147, 0.69, 1.25, 0.63, 2.65),
        512: long_prompts.Row(719, 0.73, 1.11, 0.93, 2.57),
        128: long_prompts.Row(247, 0.79, 0.96, 0.57, 3.09),
    }
    bad: list[Any] = [
        {**good, chunk: one}
        for chunk in (512, 128)
        for one in each(good[chunk], gap_p99_ms=2_000.0, delay_s=0.5, first_token_s=4.0)
    ]
    return Case(
        long_prompts.verdict, good, [*bad, {chunk: replace(row, short_delay_s=0.1) for chunk, row in good.items()}]
    )


def mixed_prompts_case() -> Case:
    good = mixed_prompts.Figures(0, 12, 80, 80, 80, 0.7)
    bad = each(good, preempted=1, straight_preempted=0, kept=79, served=70)
    return Case(mixed_prompts.verdict, good, [*bad, replace(good, served=0, kept=0)])


def speculation_case() -> Case:
    gains = {("repetitive", batch): 2.0 for batch in speculation.BATCHES}
    gains |= {("story", batch): 1.0 for batch in speculation.BATCHES}
    drafted = {2: 540, 4: 900, 5: 0, 8: 0}
    good = speculation.Figures(gains, drafted)
    worse = {"repetitive": 1.4, "story": 1.4}
    bad = [replace(good, gains={**gains, cell: worse[cell[0]]}) for cell in gains]
    bad += [replace(good, drafted={**drafted, batch: 0 if count else 7}) for batch, count in drafted.items()]
    return Case(speculation.verdict, good, [*bad, replace(good, drafted={})])


def drafter_case() -> Case:
    gains = {("routine", 1): 1.78, ("routine", 8): 1.54, ("hard", 4): 1.04}
    good = drafter.Figures("draft_model", gains, 0.82, 0.0005)
    bad = each(good, p_value=0.009, control_p_value=0.49)
    bad += [replace(good, gains={**gains, ("routine", 1): 1.2}), replace(good, gains={**gains, ("hard", 4): 0.9})]
    return Case(drafter.verdict, good, [*bad, drafter.Figures(None, {}, 0.0, 0.0)])


def distill_case() -> Case:
    good = distill.Figures(Share(572, 600), (Share(528, 600), Share(538, 600)), 0.47, 124.0, 47.4, 5.5)
    return Case(
        distill.verdict,
        good,
        each(
            good,
            teacher=Share(569, 600),
            students=(Share(538, 600), Share(500, 600)),
            params=0.51,
            minutes=151.0,
            spark_tps=27.0,
        ),
    )


def mistakes_case() -> Case:
    recommended: dict[float, dict[str, str]]
    recommended = {5: {"routine": "spark", "hard": "standard"}, 300: {"routine": "standard", "hard": "fast"}}
    counted = by_speed.Counted(calls=900, excess=5, by_student=541)
    good = by_speed.Figures(
        {0.0: counted, 0.7: counted}, 0.0, {1: {"routine": "spark", "hard": "spark"}, **recommended}
    )
    # Advice that is as wanted at some other fix time does not count.
    elsewhere = {2: recommended[5], 10: recommended[5], 600: recommended[300]}
    swapped = [
        {**recommended, fix_s: {**recommended[fix_s], kind: "auto"}}
        for fix_s in (5, 300)
        for kind in ("routine", "hard")
    ]
    bad = each(good, later_ms=51.0, recommended=elsewhere)
    few = replace(counted, by_student=100)
    bad += [replace(good, counted={**good.counted, one: replace(counted, excess=12)}) for one in good.counted]
    bad.append(replace(good, counted={0.0: few, 0.7: few}))
    return Case(by_speed.verdict, good, [*bad, *[replace(good, recommended=one) for one in swapped]])


def mistake_budget() -> Case:
    row = budget.Row(broken=0.04, closed=0.01, in_time={3.0: 0.98, 10.0: 0.96})
    killed = Killed(kills=20, audits=300, lost=0, is_same_watch=True)
    good = budget.Figures(2_000, {0.01: 0.04, 0.05: 0.03}, {(0.01, 1.0): row, (0.05, 0.3): row}, killed)
    worse = [*each(row, broken=0.051, closed=0.051), replace(row, in_time={3.0: 0.94, 10.0: 0.94})]
    bad = [replace(good, rows={**good.rows, of: one}) for of in good.rows for one in worse]
    bad += each(good, too_high={0.01: 0.051, 0.05: 0.051}, killed=replace(killed, lost=1))
    return Case(budget.verdict, good, [*bad, replace(good, killed=replace(killed, is_same_watch=False))])


def sim_fidelity() -> Case:
    one = fidelity.Compared(
        "scripted", fidelity.ON_SCRIPTED, (1_064.0, 1_062.0), (1_107, 1_107),
        {("all", 0.5): (2.175, 2.131), ("all", 0.99): (10.14, 10.173)}, (276, 276), (276, 276),
    )  # fmt: skip
    slower: dict[tuple[str, float], tuple[float, float]]
    slower = {("all", 0.5): (2.175, 2.5), ("all", 0.99): (10.14, 12.0)}
    bad = each(one, throughput_tps=(1_064.0, 1_000.0), e2e_s=slower, kept=(276, 270))
    bad += [replace(one, throughput_tps=(0.0, 0.0)), replace(one, promised=(0, 0), kept=(0, 0))]
    vllm = replace(one, name="vLLM", bars=fidelity.ON_VLLM)
    bad += each(vllm, throughput_tps=(1_064.0, 1_000.0), e2e_s=slower, kept=(276, 270))
    others = {"scripted": vllm, "vLLM": one}
    return Case(fidelity.verdict, [one, vllm], [[worse, others[worse.name]] for worse in bad])


def scaling_case() -> Case:
    elastic = Row(700.0, 44, 1.0, 0.0002, 0.1, 3.0, 110, 5)
    fixed = Row(960.0, 40, 1.0, 0.0001, 0.1, 2.0)
    one = scaling.Compared(elastic, fixed, replace(fixed, replica_h=1_056.0, most=44))
    worse = {"replica_h": 721.0, "kept": 0.994, "refused": 0.006, "fast_p95_s": 0.6, "standard_p99_s": 5.1}
    bad = [replace(one, elastic=row) for row in each(elastic, **worse, reversals=13)]
    return Case(scaling.verdict, scaling.Figures({1: one}), [scaling.Figures({1: row}) for row in bad])


def scaling_live_case() -> Case:
    live = Row(1.4, 12, 1.0, 0.0002, 0.1, 1.0, 40, 3)
    fixed = Row(2.0, 12, 1.0, 0.0001, 0.1, 2.0)
    good = scaling_live.LiveFigures(live, replace(live, replica_h=1.38), fixed, 10_800, 10_800)
    worse = {"replica_h": 1.52, "kept": 0.994, "refused": 0.006, "fast_p95_s": 0.6, "standard_p99_s": 5.1}
    bad = [replace(good, live=row) for row in each(live, **worse, reversals=13)]
    return Case(scaling_live.verdict, good, [*bad, replace(good, seen=10_799)])


def sim_parity() -> Case:
    good = parity.Figures(2_400, 2_000, 7_310, 4_610, None)
    return Case(parity.verdict, good, each(good, first_difference="event 17", events=999, complete=10))


def sim_speed() -> Case:
    fleets = {"100 replicas": speed.Played(1_000_000, 0, 32.1), "10,000 replicas": speed.Played(1_000_000, 0, 46.0)}
    day, source = speed.Played(3_899_153, 307_233, 143.1), speed.Played(50_000, 0, 4.6)
    good = speed.Figures(compiled=True, scale=1.0, fleets=fleets, day=day, memory_growth=-0.02, source=source)
    bad = [replace(good, fleets={**fleets, name: replace(one, cpu_s=70.0)}) for name, one in fleets.items()]
    return Case(
        speed.verdict, good, [*bad, *each(good, compiled=False, day=replace(day, cpu_s=181.0), memory_growth=0.06)]
    )


def relay_change_case() -> Case:
    good = relay_change.Turns([20.0] * 21, [20.4] * 21)
    return Case(relay_change.verdict, good, [replace(good, after=[20.7] * 21), relay_change.Turns([20.0], [20.0])])


def console_cost_case() -> Case:
    alone, watched = console_cost.Turn(0.5, 5.0), console_cost.Turn(0.53, 5.0, 12)
    good = console_cost.WatchedPairs([alone] * 21, [watched] * 21)
    bad = [
        replace(good, watched=[replace(watched, cpu_s=0.56)] * 21),
        replace(good, watched=[replace(watched, answers=1)] * 21),
    ]
    return Case(console_cost.verdict, good, [*bad, console_cost.WatchedPairs([alone], [watched])])


def console_pictures_case() -> Case:
    good = console_pictures.Looked(4, [], [])
    bad = each(good, pictures=3, errors=["refused to load"], too_wide=["console-390-light"])
    return Case(console_pictures.verdict, good, bad)


def continue_case() -> Case:
    proof = {"moves": 1, "billed_micro": PRICE.amount(30, 40)}
    told = Told(40, "chatcmpl-1", "text", 38, 40, 30, proof, "length", 1.5)
    good = kills.Figures(
        kills=20,
        continued=[told] * 140 + [replace(told, has_tools=True)] * 20,
        others=[replace(told, headway={**proof, "moves": 0})] * 400,
        greedy=[("a", "a", "a")] * 78 + [("b", "a", "b")] * 2,
        p_continued=0.4,
        p_control=0.002,
        drained=Drained(32, 2.0, 0),
        restarts=Drained(200, 300.0, 0),
        room=MadeRoom(replace(told, headway={"tier_served": "fast"}), 0.6, 30.0, 8),
    )
    worse = {
        "kills": 19,
        "continued": [told] * 99,
        "others": [replace(told, error="lost"), replace(told, finish_reason="stop")],
        "books": 1,
        "greedy": [("b", "a", "a")] * 3 + [("a", "a", "a")] * 77,
        "p_continued": 0.005,
        "p_control": 0.2,
    }
    bad = [*each(good, **worse), replace(good, others=[replace(told, tokens=39)])]
    bad += [replace(good, continued=[told] * 160)]
    bad += [replace(good, drained=one) for one in (Drained(31, 2.0), Drained(32, 5.1), Drained(32, 2.0, 1))]
    bad += [replace(good, restarts=Drained(200, 300.0, 1))]
    bad += [replace(good, room=replace(good.room, **worse)) for worse in ({"moved": 0}, {"failed": 1}, {"fast": told})]
    return Case(kills.verdict, good, bad)


def moves_case() -> Case:
    staying = moves.Row(70_000, 0.3, 1.0, 0.001, 0.0, 0.0, 0.0, 0, 90_000)
    good = moves.Row(80_000, 0.15, 0.999, 0.001, 400.0, 0.3, 0.9, 0, 90_000)
    demand = Demand(5.0, 1.0)
    worse = each(good, standard_tps=78_000, wait_p95_s=0.21, kept=0.994, lost=1)
    bad = [{demand: moves.Compared(one, staying)} for one in worse]
    return Case(moves.verdict, {demand: moves.Compared(good, staying)}, bad)


def two_profiles_case() -> Case:
    one = two_profiles.Row("24 x TP4", (95_000.0, 96_000.0), 1.0, 0.0)
    good = two_profiles.Row("6 x TP4 + 36 x TP2", (121_000.0, 122_000.0), 0.999, 0.001)
    worse = each(good, standard_tps=(108_000.0, 109_000.0), kept=0.98, refused=0.02)
    bad = [{0.1: two_profiles.Compared(one, row, None)} for row in worse]
    return Case(two_profiles.verdict, {0.1: two_profiles.Compared(one, good, None)}, bad)


def ids_cost_case() -> Case:
    good = ids_cost.IdPairs([1.0] * 21, [1.05] * 21)
    return Case(ids_cost.verdict, good, [ids_cost.IdPairs([1.0] * 21, [1.11] * 21), ids_cost.IdPairs([1.0], [1.0])])


def prefix_case() -> Case:
    ours = [
        prefixes.SimulatedRow("Headway", share, 0.95, 1.05, 0.2, 0.998, 0)
        for share in prefixes.FAST_SHARES
        for _ in (1, 2)
    ]
    live = prefixes.LiveFigures(0.55, 0.7, 0)
    good = prefixes.Figures(ours, live)
    worse = ({"found": 0.8}, {"imbalance": 1.3}, {"kept": 0.9}, {"refused": 1})
    bad = [prefixes.Figures([replace(row, **one) for row in ours], live) for one in worse]
    bad += [replace(good, live=one) for one in each(live, computed=0.7, first_token=0.8, errors=1)]
    return Case(prefixes.verdict, good, bad)


def prefix_cost_case() -> Case:
    good = prefix_cost.Figures(is_compiled=True, us=20.0, us_without=15.0, blocks=1_000_000, mb=100.0)
    return Case(prefix_cost.verdict, good, each(good, is_compiled=False, us=30.0, blocks=10_000))


def fast_profile_case() -> Case:
    good = profiles.Figures({"copies": 2.0, "stories": 1.0}, {"copies": 5.0, "stories": 3.0}, 0.99, 0.99, 100, 0)
    bad = each(good, gains={"copies": 1.4, "stories": 0.8}, kept=0.9, drafted=0, cut=1)
    return Case(profiles.verdict, good, bad)


def overload_case() -> Case:
    one = Point("", 400.0, 39.5, (1.2, 1.8), 5_000, (0.004, 0.012), 0, 300, 300, 0, 0.99, 0.001, 1.5)
    last = (BURSTS, STORM, SLOW, FLOOD)
    points = {phase.name: replace(one, name=phase.name) for phase in (*LOADS, *last)}
    good = overload.Figures(40.1, (0.003, 0.006), points, 500, 300, 10_000, 0)
    bad = each(good, capacity=35.0, sdk=99, slow_most=79, wrong_books=1, left=("a seat",)) + each(good, capacity=45.0)

    def with_point(name: str, **worse: Any) -> Any:
        return replace(good, points={**points, name: replace(points[name], **worse)})

    bad += [with_point(phase.name, good=37.0) for phase in (TEN, BURSTS, STORM)]
    bad += [with_point(phase.name, refusal_s=(0.004, 0.027)) for phase in (*LOADS[2:], *last)]
    bad += [with_point(LOADS[0].name, **one) for one in ({"untold": 1}, {"broken": 1})]
    bad += [with_point(TEN.name, **one) for one in ({"kept": 280}, {"normal_s": 5.1})]
    bad += [with_point(phase.name, served=0.94) for phase in (SLOW, FLOOD)]
    bad.append(with_point(FLOOD.name, wait_s=(1.2, 2.1)))
    bad.append(replace(good, points={name: replace(point, refusals=1) for name, point in points.items()}))
    return Case(overload.verdict, good, bad)


CASES = {
    "adapters": adapters_case(),
    "discovery": discovery_case(),
    "other-engines": other_engines_case(),
    "overload": overload_case(),
    "reload": reload_case(),
    "rolling-restart": rolling_restart_case(),
    "bench-truth": bench_truth(),
    "budget-race": budget_race_case(),
    "cell-limits": cell_limits_case(),
    "clients": clients_case(),
    "continue": continue_case(),
    "console-cost": console_cost_case(),
    "console-pictures": console_pictures_case(),
    "dispatcher": dispatcher_case(),
    "distill": distill_case(),
    "drafter": drafter_case(),
    "express-live": express_live(),
    "e2e-relays": e2e_relays_case(),
    "engine-noise": engine_noise_case(),
    "express-rule": express_rule(),
    "failover": failover_case(),
    "fleet": fleet_case(),
    "fleet-vllm": fleet_vllm_case(),
    "rolling-upgrade": rolling_upgrade_case(),
    "fast-mode": fast_mode_case(),
    "frontier": frontier_case(),
    "hostile": hostile_case(),
    "ids-cost": ids_cost_case(),
    "moves": moves_case(),
    "prefix": prefix_case(),
    "prefix-cost": prefix_cost_case(),
    "fast-profile": fast_profile_case(),
    "internet-scale": internet_scale_case(),
    "leaks": leaks_case(),
    "websocket": websocket_case(),
    "ledger-cost": ledger_cost(),
    "ledger-outages": ledger_outages(),
    "ledger-torture": ledger_torture(),
    "torture": torture_of_the_whole(),
    "upgrade": ledger_upgrade_case(),
    "torture-vllm": torture_on_vllm(),
    "long-prompts": long_prompts_case(),
    "mistake-budget": mistake_budget(),
    "mixed-prompts": mixed_prompts_case(),
    "mistakes": mistakes_case(),
    "neighbours": neighbours_case(),
    "referee": referee_case(),
    "relay-change": relay_change_case(),
    "relays": relays_case(),
    "sim-fidelity": sim_fidelity(),
    "scaling": scaling_case(),
    "scaling-live": scaling_live_case(),
    "sim-parity": sim_parity(),
    "sim-speed": sim_speed(),
    "soak": soak_case(),
    "soak-cell": soak_cell_case(),
    "speculation": speculation_case(),
    "tax": tax_case(),
    "two-profiles": two_profiles_case(),
}


# Runs whose failing tables are in a file of their own, and the one that draws a picture and has no bar.
ELSEWHERE = {
    "peers": "tests/runs/test_peers_verdict.py",
    "plan-accuracy": "tests/plan/test_bands.py",
    "front-door": "tests/test_front_door.py",
    "tutorial": "tests/test_front_door.py",
    "demo-picture": "tests/test_front_door.py",
}


def test_every_run_has_a_failing_table() -> None:
    assert {script.stem for script in SCRIPTS} == {*CASES, *ELSEWHERE}, "a run without a failing table may never fail"
    for file in ELSEWHERE.values():
        assert (SCRIPTS[0].parents[1] / file).exists()


@pytest.mark.parametrize("script", [one for one in SCRIPTS if one.stem in CASES], ids=lambda script: script.stem)
def test_the_verdict_is_of_the_module_that_the_script_runs(script: Path) -> None:
    [module] = re.findall(r'^exec "\$PY" -m (runs\.[a-z_.]+) "\$@"$', script.read_text(), re.MULTILINE)
    assert CASES[script.stem].verdict.__module__.rpartition(".")[0] == module.rpartition(".")[0]


@pytest.mark.parametrize("name", CASES)
def test_good_figures_hold(name: str) -> None:
    found = CASES[name].verdict(CASES[name].good)
    assert found.ok, found.reasons
    assert found.reasons == ()
    assert found.figure


@pytest.mark.parametrize("name", CASES)
def test_each_bar_is_missed_by_bad_figures(name: str) -> None:
    case = CASES[name]
    missed: set[str] = set()
    for figures in case.bad:
        found = case.verdict(figures)
        assert not found.ok, figures
        assert found.reasons
        missed |= {bar.what for bar in found.bars if not bar.holds}
    assert {bar.what for bar in case.verdict(case.good).bars} <= missed


def test_what_is_not_a_number_misses_its_bar() -> None:
    assert not at_most("wait", math.nan, 1.0).holds
    assert not at_least("speed", math.nan, 1.0).holds
    assert not none_of("lost", 1).holds


def test_a_verdict_without_bars_is_not_ok() -> None:
    assert not Verdict("nothing was measured", ()).ok


@pytest.mark.parametrize(("holds", "code"), [(True, 0), (False, 1)])
def test_a_run_prints_its_figure_last(holds: bool, code: int) -> None:
    written = io.StringIO()
    bar = Bar("lost", "1", "0", holds)
    assert finish(Console(file=written, width=80), Verdict("1 lost of 10", (bar,))) == code
    assert written.getvalue().splitlines()[-1] == "1 lost of 10"
    assert ("MISSED" in written.getvalue()) != holds

"""What a dispatcher has learnt survives it: relays keep it for the next one."""

from __future__ import annotations

import logging
from dataclasses import replace
from math import inf, nan
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import RateLimitError

from headway.config import Config
from headway.core.learnt import (
    MAX_BUCKETS,
    MAX_TENANTS,
    Learnt,
    LearntBucket,
    LearntQueue,
    LearntReplica,
    LearntTenant,
)
from headway.core.machine import Machine
from headway.core.types import Event, Offer, PolicyChanged, PoolPolicy, Remembered, TierPolicy
from headway.dispatch import handover
from headway.dispatch.frames import EVENT_ROWS, MAX_LEARNT, Keep, Kept
from headway.dispatch.handover import Handover, Keeper, decode_learnt, encode_learnt
from headway.dispatch.record import replay
from headway.engines.scripted import Script, running
from tests.dispatch.test_cell import CURVE, FAST, QUICK, Cell, running_cell
from tests.running import MODEL, config_for

pytestmark = pytest.mark.anyio
LEARNT = Learnt([], [LearntBucket("a standard m", 1.0, 2.0, 3.0, 4.0)])


class HandClock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def new_machine() -> Machine:
    return Machine({"p": PoolPolicy()}, {"m": Offer("p", {"standard": TierPolicy(4, 1.0)})})


def kept(epoch: int, number: int, learnt: Learnt = LEARNT, age_s: float = 0.5) -> Kept:
    return Kept(epoch, number, age_s, encode_learnt(learnt))


# --- the dispatcher's side ---


def test_it_is_kept_every_two_seconds() -> None:
    clock = HandClock()
    one = Handover(new_machine(), 1, clock)
    assert one.keep() is None
    clock.now += 2.0
    keep = one.keep()
    assert keep is not None
    assert keep.number == 1
    assert decode_learnt(keep.learnt) == new_machine().learnt(clock.now)
    assert one.keep() is None
    clock.now += 2.0
    assert (again := one.keep()) is not None
    assert again.number == 2


def test_it_is_kept_less_often_if_that_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = HandClock()
    machine = new_machine()
    one = Handover(machine, 1, clock)

    def slow(now: float) -> Learnt:
        clock.now += 0.1
        return LEARNT

    monkeypatch.setattr(machine, "learnt", slow)
    clock.now += 2.0
    assert one.keep() is not None
    clock.now += 49.9
    assert one.keep() is None
    clock.now += 0.2
    assert one.keep() is not None


def test_too_much_is_not_kept(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(handover, "MAX_LEARNT", 10)
    clock = HandClock()
    one = Handover(new_machine(), 1, clock)
    for _ in range(3):
        clock.now += 2.0
        assert one.keep() is None
    assert len(caplog.messages) == 1


def test_the_newest_of_the_newest_epoch_is_taken_once() -> None:
    clock = HandClock()
    one = Handover(new_machine(), 5, clock)
    newest = replace(LEARNT, buckets=[])
    for offer in (kept(3, 9), kept(4, 2, newest), kept(4, 1), kept(5, 7), kept(6, 1)):
        one.offered(offer)
    clock.now += 0.25
    assert one.take() == Remembered(newest, 0.75)
    assert one.take() is None
    one.offered(kept(4, 3))
    assert one.take() is None


@pytest.mark.parametrize("number", [nan, inf, -inf], ids=str)
def test_numbers_that_could_not_be_recorded_are_not_taken(number: float, caplog: pytest.LogCaptureFixture) -> None:
    bucket = LearntBucket("a", 1.0, number, 0.0, 0.0)
    one = Handover(new_machine(), 5, HandClock())
    one.offered(kept(4, 1, Learnt([], [bucket])))
    assert one.take() is None
    other = Handover(new_machine(), 5, HandClock())
    other.offered(kept(4, 1, age_s=number))
    assert other.take() is None
    assert len(caplog.messages) == 2


@pytest.mark.parametrize(
    "payload", [b"", b"\xc1", msgspec.msgpack.encode([0]), msgspec.msgpack.encode([0, [], [["a"]]])], ids=range(4)
)
def test_bytes_that_say_nothing_are_not_taken(payload: bytes) -> None:
    one = Handover(new_machine(), 5, HandClock())
    one.offered(Kept(4, 1, 0.0, payload))
    assert one.take() is None


def test_that_of_a_large_cell_fits_into_one_message() -> None:
    pool = new_machine().learnt(0.0).pools[0]
    pool.caps.replicas = [LearntReplica(f"http://10.0.0.{number}:8000", 0.1, 1.1, 1.2, 9.5) for number in range(10_000)]
    tenants = [LearntTenant(f"key-{number:08x}", number + 0.5) for number in range(MAX_TENANTS)]
    pool.waiting.queues = [LearntQueue("standard", tenants)]
    buckets = [LearntBucket(f"key-{number:08x} other", 0.5, 100.5, 100.5, 1.5) for number in range(MAX_BUCKETS)]
    learnt = Learnt([pool], buckets)
    payload = encode_learnt(learnt)
    assert len(payload) < 1_500_000 < MAX_LEARNT
    assert decode_learnt(payload) == learnt


# --- the relay's side ---


def test_a_relay_gives_it_only_to_a_dispatcher_of_a_higher_epoch() -> None:
    clock = HandClock()
    keeper = Keeper(clock)
    assert keeper.kept_for(1) is None
    keeper.keep(Keep(1, b"old"), 3)
    keeper.keep(Keep(2, b"new"), 3)
    clock.now += 1.5
    assert keeper.kept_for(3) is None
    assert keeper.kept_for(4) == Kept(3, 2, 1.5, b"new")
    assert keeper.kept_for(5) == Kept(3, 2, 1.5, b"new")  # the fourth died before it said anything


# --- a cell ---


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "EVERY_S", 0.05)


async def until_kept(cell: Cell) -> None:
    """Until both relays have what the dispatcher knows now."""
    number = cell.dispatcher._handover._number

    def is_kept(keeper: Any) -> bool:
        return keeper._kept is not None and (keeper._kept[0], keeper._kept[1].number) > (cell.epoch, number)

    await cell.until(lambda: all(is_kept(relay.dispatch._keeper) for relay in cell.relays))


def limited(engine: Any) -> Config:
    """One tenant, and a limit that one call uses up for a minute."""
    return config_for([engine], tier={"output_tokens_per_minute": 30})


@pytest.mark.usefixtures("often")
async def test_a_limit_that_was_used_up_stays_used_up_and_both_records_replay(tmp_path: Path) -> None:
    first, second = tmp_path / "run.jsonl", tmp_path / "run.jsonl.2"
    async with running(QUICK) as engine, running_cell(tmp_path, limited(engine), record=first) as cell:
        await cell.relays[0].call(60)
        await cell.until_empty()
        with pytest.raises(RateLimitError):
            await cell.relays[1].call(5)
        await until_kept(cell)
        await cell.die()
        await cell.lead(second)
        await cell.until_open(1)
        for relay in cell.relays:
            with pytest.raises(RateLimitError):
                await relay.call(5)
    assert '"Remembered"' not in first.read_text()
    assert second.read_text().count('"Remembered"') == 1
    for record in (first, second):
        replayed = replay(record)
        assert replayed.first_difference is None
        assert replayed.events > 5


async def test_what_no_relay_has_kept_is_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handover, "EVERY_S", 3600.0)
    async with running(QUICK) as engine, running_cell(tmp_path, limited(engine)) as cell:
        await cell.relays[0].call(60)
        await cell.die()
        await cell.lead()
        await cell.until_open(1)
        assert (await cell.relays[0].call(5)).usage.completion_tokens == 5


async def test_an_engine_that_is_slower_than_its_curve_is_known_to_the_third_dispatcher(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if the second one dies before it has said anything."""
    monkeypatch.setattr(handover, "EVERY_S", 0.05)
    script = Script(model=MODEL, first_token_s=0.005, step_s=((1, 0.0115),))  # the curve says 0.01
    async with running(script) as engine:
        config = config_for([engine], seats=8, express=[FAST], curve=CURVE)
        async with running_cell(tmp_path, config) as cell:
            for _ in range(3):
                await cell.relays[0].call(40, "fast")
            await cell.until_empty()
            state = cell.pool.replica_state(engine.url)
            mean, caps = state.feedback.mean, state.caps
            assert mean > 1.01
            await until_kept(cell)
            await cell.die()
            monkeypatch.setattr(handover, "EVERY_S", 3600.0)
            await cell.lead()
            await cell.until_open(1)
            await cell.die()
            await cell.lead()
            await cell.until_open(1)
            state = cell.pool.replica_state(engine.url)
            assert (state.feedback.mean, state.caps) == (mean, caps)


@pytest.mark.parametrize("event", [Remembered(Learnt([], [])), PolicyChanged({}, {})])
def test_a_relay_cannot_say_what_core_remembers_or_the_owner_decides(event: Event) -> None:
    assert type(event) not in EVENT_ROWS.to_row
    assert type(event).__name__ not in EVENT_ROWS.description


async def test_nothing_is_kept_before_the_dispatcher_is_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(handover, "EVERY_S", 0.0)
    async with running(QUICK) as engine, running_cell(tmp_path, limited(engine)) as cell:
        await until_kept(cell)
        await cell.die()
        await cell.lead()
        cell.dispatcher.tick()
        assert cell.dispatcher._handover._number == 0
        await cell.until_open(1)
        assert "going on with what the dispatcher of epoch 1 had learnt" in caplog.text

"""How runs/failover.sh judges, with records made by hand; and that a link can be cut."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from runs.failover.callers import Ended, read_head
from runs.failover.judge import (
    Aboard,
    Done,
    Limits,
    around,
    crowds,
    cut_without_reason,
    filled,
    hanging,
    resumed_s,
    served_twice,
    waits_of,
    waits_within,
)
from runs.failover.links import CuttableLink, leader_of
from runs.failover.plan import AWAY, KINDS, WITH_ETCD, plan

LIMITS = Limits(seats=3, express=2, max_hold_s={"standard": 10.0, "fast": 5.0}, step_s=0.1, answer_s=1.0)
STOP = Done("relay stopped", "relay-1", 10.0, 12.0)
KILL = Done("relay killed", "relay-1", 20.0, 21.0)


def aboard(name: str, from_s: float, until_s: float, tier: str = "standard", relay: str = "relay-1") -> Aboard:
    return Aboard(name, "replica", tier, relay, from_s, until_s)


def ended(sent_s: float, ended_s: float, how: str = "complete", relay: str = "relay-1", tier: str = "fast") -> Ended:
    return Ended(tier, 10, sent_s, ended_s=ended_s, how=how, call_id=f"call-{sent_s}", relay=relay)


@pytest.mark.parametrize("order", [("standard", "standard", "fast"), ("fast", "standard", "standard")])
def test_a_fast_stream_among_more_than_its_limit_is_found(order: tuple[str, ...]) -> None:
    streams = [aboard(str(number), number, 10.0 + number, tier) for number, tier in enumerate(order)]
    [found] = crowds(streams, LIMITS, [])
    assert (found.call_id, found.streams, found.limit, found.is_explained) == ("2", 3, 2, False)
    assert found.at_s == 2.0
    assert found.lasted_s == 8.0  # until the first of the three ends


def test_standard_streams_are_bounded_by_the_seats() -> None:
    streams = [aboard(str(number), number, 10.0) for number in range(4)]
    assert [(found.streams, found.limit) for found in crowds(streams, LIMITS, [])] == [(4, 3)]
    assert not crowds(streams[:3], LIMITS, [])
    assert filled(streams[:3], LIMITS) == 1


def test_a_seat_that_is_free_again_is_no_crowd() -> None:
    streams = [aboard("a", 0.0, 5.0, "fast"), aboard("b", 1.0, 3.0), aboard("c", 3.0, 6.0), aboard("d", 5.0, 7.0)]
    assert not crowds(streams, LIMITS, [])


def test_streams_of_other_replicas_do_not_count() -> None:
    others = [Aboard(str(number), f"replica {number}", "fast", "relay-1", 0.0, 9.0) for number in range(5)]
    assert not crowds(others, LIMITS, [])


@pytest.mark.parametrize(
    ("relay", "at_s", "is_explained"),
    [
        pytest.param("relay-1", 12.1, True, id="when its relay woke"),
        pytest.param("relay-1", 12.5, False, id="later"),
        pytest.param("relay-1", 9.9, False, id="before it was stopped"),
        pytest.param("relay-2", 12.1, False, id="when another relay woke"),
    ],
)
def test_only_a_stop_of_the_own_relay_explains_a_crowd(relay: str, at_s: float, is_explained: bool) -> None:
    streams = [aboard("a", 0.0, 30.0, "fast"), aboard("b", 0.0, 30.0), aboard("c", at_s, 30.0, relay=relay)]
    [found] = crowds(streams, LIMITS, [STOP])
    assert found.is_explained is is_explained
    assert ("between check and write" in found.why) is is_explained


def test_a_stream_may_be_cut_by_the_death_of_its_relay_only() -> None:
    by_kill = ended(19.0, 20.1, "cut")
    of_another = ended(19.0, 20.1, "cut", relay="relay-2")
    later = ended(22.0, 23.0, "cut")
    without_answer = ended(19.5, 20.0, "no answer", relay="")
    calls = [by_kill, of_another, later, without_answer, ended(19.0, 25.0)]
    assert cut_without_reason(calls, [KILL]) == [of_another, later, without_answer]
    both = Done("leader and relay killed", "dispatcher-1 relay-2", 20.0, 22.0)
    assert cut_without_reason([of_another], [both]) == []
    assert cut_without_reason([of_another], [Done("leader killed", "dispatcher-1", 20.0, 22.0)]) == [of_another]


def test_a_call_hangs_if_it_outlasts_its_deadline_its_tokens_and_the_stop_of_its_relay() -> None:
    longest = 5.0 + 1.0 + 1.5 + 5.0
    calls = [ended(30.0, 30.0 + longest - 0.1), ended(30.0, 30.0 + longest + 0.1)]
    assert hanging(calls, LIMITS, []) == calls[1:]
    assert hanging([ended(11.0, 11.0 + longest + 1.9)], LIMITS, [STOP]) == []
    assert hanging([ended(13.0, 13.0 + longest + 1.9)], LIMITS, [STOP]) != []


def test_boarding_resumes_with_the_first_stream_that_had_no_seat_yet() -> None:
    assert resumed_s(10.0, [9.0, 10.4, 11.5, 12.0]) == pytest.approx(1.5)
    assert resumed_s(10.0, [9.0, 10.4]) == float("inf")


def test_waits_are_from_the_caller_to_the_replica() -> None:
    calls = [ended(1.0, 5.0), ended(2.0, 5.0), ended(3.0, 5.0, "refused")]
    waits = waits_of(calls, {"call-1.0": 1.25, "call-2.0": 4.0})
    assert waits == [(1.0, 0.25), (2.0, 2.0)]
    assert waits_within(waits, 0.0, 1.5) == [0.25]
    assert waits_within(waits, 5.0, 6.0) == []
    assert list(around([1.5], waits)) == [(-0.5, 0.25), (0.5, 2.0)]


def test_a_call_that_two_replicas_finished_was_served_twice() -> None:
    assert served_twice([("a", "finished"), ("a", "aborted"), ("b", "finished"), ("b", "finished")]) == ["b"]


def test_the_plan_is_drawn_from_the_seed() -> None:
    first = plan(7, 60, with_etcd=False, with_outage=True)
    assert first == plan(7, 60, with_etcd=False, with_outage=True)
    assert first != plan(8, 60, with_etcd=False, with_outage=True)
    assert Counter(fault.kind for fault in first)[AWAY] == 1
    kinds = {fault.kind for seed in range(20) for fault in plan(seed, 60, with_etcd=False, with_outage=False)}
    assert kinds == set(KINDS)
    assert {fault.kind for fault in plan(1, 100, with_etcd=True, with_outage=False)} == set(WITH_ETCD)


def test_the_head_of_an_answer_is_read() -> None:
    head = b"HTTP/1.1 200 OK\r\nX-Request-Id: abc\r\nx-relay: relay-2\r\n\r\n"
    assert read_head(head) == (200, {"x-request-id": "abc", "x-relay": "relay-2"})


# --- links ---


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):
        while data := await reader.read(100):
            writer.write(data)
    writer.close()


async def _with_link(use: Any) -> None:
    server = await asyncio.start_server(_echo, "127.0.0.1", 0)
    link = CuttableLink("relay-1", "dispatcher-1", server.sockets[0].getsockname()[1])
    await link.start()
    try:
        async with asyncio.timeout(20):
            await use(link)
    finally:
        await link.stop()
        server.close()


@pytest.mark.anyio
async def test_a_frozen_link_carries_nothing_and_closes_nothing() -> None:
    async def use(link: CuttableLink) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"one")
        assert await reader.readexactly(3) == b"one"
        assert leader_of([link]) == "dispatcher-1"
        link.freeze()
        writer.write(b"two")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await reader.readexactly(3)
        link.mend()
        assert await reader.readexactly(3) == b"two"
        writer.close()

    await _with_link(use)


@pytest.mark.anyio
async def test_a_closed_link_ends_its_connections_and_refuses_new_ones() -> None:
    async def use(link: CuttableLink) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"one")
        await reader.readexactly(3)
        link.close()
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        with pytest.raises((ConnectionError, asyncio.IncompleteReadError)):
            await reader.readexactly(1)
        writer.close()
        link.mend()
        reader, writer = await asyncio.open_connection("127.0.0.1", link.port)
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        writer.close()

    await _with_link(use)

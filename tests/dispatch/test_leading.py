"""A term: what relays are told while the dispatcher may decide, and while it may not."""

from __future__ import annotations

import asyncio

import pytest

from headway.core.machine import Machine
from headway.core.types import TICK_S, Arrived, Board, Call, ModelPolicy, Replica, ReplicaUp, TierPolicy, own_pools
from headway.dispatch.dispatcher import SILENT_TICKS, Dispatcher
from headway.dispatch.fleet import Member
from headway.dispatch.frames import (
    PROTOCOL,
    Actions,
    Counted,
    Events,
    Hello,
    Reported,
    Turned,
    Welcome,
)
from headway.dispatch.leading import ALONE_S, MAX_WAITING, LeaseCandidate, Standby, Term
from headway.dispatch.lease import LEASE_S, Leadership
from headway.dispatch.sessions import RelaySession
from tests.dispatch.fake_lease import FakeLease, FakeRow, FakeTime, finished
from tests.dispatch.hand_relays import HandRelay, Line

RELAYS = ("relay-1", "relay-2", "relay-3")
REPLICA = Replica("engine", "m", seats=4)
POLICY = ModelPolicy(tiers={"standard": TierPolicy(max_held=10, max_hold_s=10.0)})


@pytest.fixture
def clock() -> FakeTime:
    return FakeTime()


@pytest.fixture
def row(clock: FakeTime) -> FakeRow:
    return FakeRow(clock)


@pytest.fixture
def term(clock: FakeTime, row: FakeRow) -> Term:
    leadership = Leadership(FakeLease(row, "one"), clock)
    finished(leadership.stand())
    pools, offers = own_pools({"m": POLICY})
    dispatcher = Dispatcher(
        Machine(pools, offers), [Member(REPLICA, "vllm")], leadership.epoch or 0, "text", RELAYS, clock=clock
    )
    return Term(dispatcher, leadership, RELAYS, "one", clock)


def everybody(term: Term, clock: FakeTime) -> list[HandRelay]:
    """All relays have connected, said that they have no calls, and obey."""
    relays = [HandRelay(term, clock, name) for name in RELAYS]
    for relay in relays:
        relay.say(Reported())
        relay.beat()
    return relays


def open_replica(relays: list[HandRelay], term: Term) -> None:
    prober = term.dispatcher.cell._prober_of("engine")
    relay = next(one for one in relays if one.session is prober)
    relay.say(Events([ReplicaUp(REPLICA)]))
    relay.say(Counted("engine", 0))


def call(number: int) -> Events:
    return Events([Arrived(Call(f"call-{number}", "m", "standard"))])


def boarded(relay: HandRelay) -> list[str]:
    return [one.call_id for acted in relay.line.of(Actions) for one in acted.actions if isinstance(one, Board)]


def test_nothing_is_decided_before_more_than_half_of_the_relays_obey(term: Term, clock: FakeTime) -> None:
    one = HandRelay(term, clock, "relay-1")
    assert one.line.of(Welcome) == [Welcome(1, "text", 1.0, "one")]
    one.say(call(1))
    assert not one.beat().renews
    assert not term.has_begun
    two = HandRelay(term, clock, "relay-2")
    two.say(Reported())
    two.beat()
    assert not term.has_begun  # the third may obey the leader before, whose echoes have to end
    clock.now += 0.6
    assert one.beat().renews
    assert two.beat().renews
    assert term.has_begun


def test_if_all_obey_it_begins_at_once_and_boards_when_the_engine_was_counted(term: Term, clock: FakeTime) -> None:
    relays = everybody(term, clock)
    assert term.has_begun
    relays[0].say(call(1))
    assert boarded(relays[0]) == []
    open_replica(relays, term)
    assert boarded(relays[0]) == ["call-1"]


def test_what_relays_say_while_it_may_not_decide_waits(term: Term, clock: FakeTime, row: FakeRow) -> None:
    relays = everybody(term, clock)
    open_replica(relays, term)
    clock.now += LEASE_S  # as if it had been stopped
    relays[1].say(call(1))
    assert not relays[1].beat().renews
    assert boarded(relays[1]) == []
    finished(term._leadership.renew())
    assert relays[1].beat().renews
    assert boarded(relays[1]) == ["call-1"]
    row.epoch += 1  # another one has the lease
    finished(term._leadership.renew())
    relays[1].say(call(2))
    assert boarded(relays[1]) == ["call-1"]
    assert term.why_over() == "the lease is lost"


def test_with_the_store_away_it_goes_on_while_more_than_half_obey(term: Term, clock: FakeTime, row: FakeRow) -> None:
    relays = everybody(term, clock)
    open_replica(relays, term)
    row.away.add("one")
    finished(term._leadership.renew())
    for number in range(20):
        clock.now += 0.2
        for relay in relays[:2]:
            relay.beat()
        relays[0].say(call(number))
        relays[0].beat()
    assert clock.now > 100 + LEASE_S
    assert len(boarded(relays[0])) == 4  # its seats
    clock.now += 1.0  # nobody is heard
    assert not relays[0].beat().renews


def test_an_old_beat_says_nothing_about_now(term: Term, clock: FakeTime, row: FakeRow) -> None:
    """A leader that was stopped finds the beats of that time in its sockets."""
    relays = everybody(term, clock)
    row.away.add("one")
    finished(term._leadership.renew())
    clock.now += 5.0
    for relay in relays:
        assert not relay.beat().renews  # having heard an echo of five seconds ago
    for relay in relays:
        relay.beat()
    assert relays[0].beat().renews  # having heard one of now


def test_a_leader_that_reaches_too_few_relays_lets_another_one_try(term: Term, clock: FakeTime) -> None:
    one = HandRelay(term, clock, "relay-1")
    clock.now += ALONE_S / 2
    one.beat()
    assert not term.why_over()
    clock.now += ALONE_S / 2 + 0.1
    one.beat()
    assert term.why_over() == "it reaches too few relays"
    term.close()
    assert one.line.closed


def test_relays_that_are_not_in_the_list_or_are_there_twice_are_turned_away(term: Term, clock: FakeTime) -> None:
    assert "not one of the relays" in HandRelay(term, clock, "relay-9").line.sent[0].why
    first = HandRelay(term, clock, "relay-1")
    again = HandRelay(term, clock, "relay-1", run="another")
    assert "another relay is called 'relay-1'" in again.line.sent[0].why
    first.session.on_lost("its connection broke")
    assert HandRelay(term, clock, "relay-1", run="another").line.of(Welcome)


def test_an_epoch_that_a_relay_knows_from_elsewhere_ends_the_term(term: Term, clock: FakeTime) -> None:
    assert isinstance(HandRelay(term, clock, "relay-1", epoch=1, leader="another").line.sent[0], Turned)
    assert term.why_over()
    assert term.highest_epoch > 1


def test_a_relay_that_asks_for_the_configuration_does_not_count(term: Term, clock: FakeTime) -> None:
    line = Line()
    session = RelaySession(term, line, clock)  # type: ignore[arg-type]
    session.on_message(Hello(PROTOCOL, "relay-1", ""))
    assert line.of(Welcome)[0].config == "text"
    assert line.closed
    session.on_lost("it was closed")
    assert not term._sessions


def test_a_standby_turns_relays_away_and_learns_the_epoch(clock: FakeTime) -> None:
    standby = Standby()
    relay = HandRelay(standby, clock, "relay-1", epoch=7, leader="another")
    assert relay.line.sent == [Turned("it stands by", "")]
    assert standby.highest_epoch == 7


def test_a_relay_that_is_silent_is_dropped(term: Term, clock: FakeTime) -> None:
    relays = everybody(term, clock)
    for _ in range(SILENT_TICKS + 1):
        assert not relays[0].line.closed
        clock.now += TICK_S
        for relay in relays[1:]:
            relay.beat()
        term.wake()
    assert [relay.line.closed for relay in relays] == ["it is silent", "", ""]


def test_no_relay_is_dropped_because_the_dispatcher_itself_was_paused(term: Term, clock: FakeTime) -> None:
    relays = everybody(term, clock)
    clock.now += 2 * SILENT_TICKS * TICK_S
    term.dispatcher.tick()  # before the beats that wait are read
    assert [relay.line.closed for relay in relays] == ["", "", ""]


@pytest.mark.anyio
async def test_when_the_store_is_back_a_standby_lets_the_leader_renew_first(clock: FakeTime, row: FakeRow) -> None:
    leader = FakeLease(row, "one", 0.05)
    assert await leader.take() == 1
    standby = LeaseCandidate(FakeLease(row, "two", 0.05), RELAYS, lambda _: pytest.fail("it leads"), clock)
    row.away = {"one", "two"}
    clock.now += 10.0  # the lease has ended
    assert not await standby._stand()
    assert not await standby._stand()
    row.away = set()
    standing = asyncio.create_task(standby._stand())
    await asyncio.sleep(0)
    assert await leader.renew(1)
    assert not await standing


def test_a_relay_that_says_hello_when_the_term_is_over_is_turned_away(term: Term, clock: FakeTime) -> None:
    line = Line()
    session = RelaySession(term, line, clock)  # type: ignore[arg-type]
    term.close()
    session.on_message(Hello(PROTOCOL, "relay-1", "run"))
    assert line.sent == [Turned("it leads no longer", "")]
    assert line.closed


def test_what_waits_is_bounded(term: Term, clock: FakeTime) -> None:
    relay = HandRelay(term, clock, "relay-1")
    for _ in range(MAX_WAITING + 1):
        relay.say(Reported())
    assert term.why_over() == "too much waits"

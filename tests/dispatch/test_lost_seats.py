"""The seats of relays that are gone: they are free when the engine does not run their calls any more, never before."""

from __future__ import annotations

import pytest

from headway.core.machine import Machine
from headway.core.types import (
    Adopted,
    Arrived,
    Call,
    Finished,
    ModelPolicy,
    Replica,
    ReplicaUp,
    TierPolicy,
    own_pools,
)
from headway.dispatch.cell_fleet import COUNT_S
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.engine_counts import MARGIN_S, SENT_S
from headway.dispatch.fleet import Member
from headway.dispatch.frames import Count, Counted, Events, Reported
from headway.dispatch.sessions import LEASE_S
from tests.dispatch.fake_lease import FakeTime
from tests.dispatch.hand_relays import HandRelay

REPLICA = Replica("engine", "m", seats=2)
POLICY = ModelPolicy(tiers={"standard": TierPolicy(max_held=10, max_hold_s=60.0)})


@pytest.fixture
def clock() -> FakeTime:
    return FakeTime()


class OneEngine:
    """A dispatcher with one replica of two seats, and two relays; relay-1 probes the replica."""

    def __init__(self, clock: FakeTime) -> None:
        self.clock = clock
        pools, offers = own_pools({"m": POLICY})
        names = ["relay-1", "relay-2"]
        self.dispatcher = Dispatcher(Machine(pools, offers), [Member(REPLICA, "vllm")], 1, "", names, clock=clock)
        self.one, self.two = (HandRelay(self.dispatcher, clock, name) for name in names)
        for relay in (self.one, self.two):
            relay.say(Reported())
        self.one.say(Events([ReplicaUp(REPLICA)]))
        self.one.say(Counted("engine", 0))

    @property
    def aboard(self) -> set[str]:
        state = self.dispatcher.machine.pools["m"].replica_state("engine")
        assert state is not None
        return set(state.aboard)

    def run(self, seconds: float) -> None:
        """Let time pass; relay-1 beats, and relay-2 if it is there."""
        for _ in range(round(seconds / 0.1)):
            self.clock.now += 0.1
            self.one.beat()
            if self.two.session.lost_at is None:
                self.two.beat()
            self.dispatcher.tick()


def test_a_call_that_ends_while_a_new_dispatcher_counts_does_not_hide_a_stranger(clock: FakeTime) -> None:
    pools, offers = own_pools({"m": POLICY})
    dispatcher = Dispatcher(Machine(pools, offers), [Member(REPLICA, "vllm")], 2, "", ["relay-1"], clock=clock)
    relay = HandRelay(dispatcher, clock, "relay-1")
    relay.say(Events([Adopted(Call("ours", "m", "standard"), "engine", is_delivering=True)]))
    relay.say(Reported())
    relay.say(Events([ReplicaUp(REPLICA)]))
    relay.say(Counted("engine", 1))  # ours has ended there already: this is another one
    relay.say(ended("ours"))
    clock.now += COUNT_S
    dispatcher.tick()
    assert relay.line.of(Count)
    relay.say(Counted("engine", 1))
    for number in range(3):
        relay.say(call(f"call-{number}"))
    state = dispatcher.machine.pools["m"].replica_state("engine")
    assert state is not None
    assert len(state.aboard) == 1  # the stranger has the other seat
    clock.now += SENT_S + 0.1
    relay.say(Counted("engine", 1))  # it is gone
    relay.say(Counted("engine", 1))
    assert len(state.aboard) == 2


def call(name: str) -> Events:
    return Events([Arrived(Call(name, "m", "standard"))])


def ended(name: str) -> Events:
    return Events([Finished(name, prompt_tokens=1, output_tokens=1)])


def test_a_lost_call_keeps_its_seat_while_the_engine_runs_it(clock: FakeTime) -> None:
    engine = OneEngine(clock)
    engine.one.say(call("ours"))
    engine.two.say(call("lost"))
    engine.run(SENT_S + 0.1)
    engine.two.session.on_lost("it is gone")
    engine.run(LEASE_S + MARGIN_S + 0.1)
    for _ in range(3):
        engine.one.say(Counted("engine", 2))
        engine.run(COUNT_S)
    assert engine.aboard == {"ours", "lost"}
    for _ in range(2):
        engine.one.say(Counted("engine", 1))
        engine.run(COUNT_S)
    assert engine.aboard == {"ours"}


def test_a_call_that_ends_while_the_engine_is_counted_does_not_hide_a_lost_one(clock: FakeTime) -> None:
    engine = OneEngine(clock)
    engine.one.say(call("ours"))
    engine.two.say(call("lost"))
    engine.run(SENT_S + 0.1)
    engine.two.session.on_lost("it is gone")
    engine.run(LEASE_S + MARGIN_S + 0.1)
    engine.one.say(call("waits"))
    engine.one.say(Counted("engine", 2))
    engine.run(COUNT_S)
    engine.one.say(Counted("engine", 1))  # ours has ended there, and its relay says so a moment later
    engine.one.say(ended("ours"))
    assert engine.aboard == {"lost", "waits"}
    engine.run(SENT_S + 0.1)
    engine.one.say(Counted("engine", 2))
    engine.run(COUNT_S)
    assert engine.aboard == {"lost", "waits"}

"""What a dispatcher tells operators: as the leader, while too few relays obey it, and while it stands by."""

from __future__ import annotations

from typing import Any

import pytest

from headway.core.machine import Machine
from headway.core.types import (
    TICK_S,
    Arrived,
    Call,
    Left,
    ModelPolicy,
    Refuse,
    Replica,
    ReplicaUp,
    TierPolicy,
    own_pools,
)
from headway.dispatch.dispatcher import MIN_SLEEP_S, Dispatcher
from headway.dispatch.fleet import Member
from headway.dispatch.frames import (
    PROTOCOL,
    AskStatus,
    Beat,
    Counted,
    Events,
    Hello,
    RelayStatus,
    ReplicaStatus,
    Reported,
    Status,
    Turned,
)
from headway.dispatch.leading import Standby, Term
from headway.dispatch.lease import Leadership
from headway.dispatch.sessions import RelaySession
from headway.dispatch.status import LAG_WINDOW_S, TickLag
from headway.dispatch.stream_count import TELL_S
from tests.dispatch.fake_lease import FakeLease, FakeRow, FakeTime, finished

REPLICAS = [Replica("a", "m", seats=1), Replica("b", "m", seats=8)]
MEMBERS = [Member(replica, "vllm") for replica in REPLICAS]
POLICY = ModelPolicy(tiers={"standard": TierPolicy(max_held=10, max_hold_s=10.0)})


class Line:
    """A link that remembers what was sent on it."""

    name = "a line"

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.acted: list[Any] = []
        self.closed = ""

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def act(self, action: Any) -> None:
        self.acted.append(action)

    def close(self, reason: str) -> None:
        self.closed = reason


@pytest.fixture
def clock() -> FakeTime:
    return FakeTime()


@pytest.fixture
def term(clock: FakeTime) -> Term:
    leadership = Leadership(FakeLease(FakeRow(clock), "one"), clock)
    finished(leadership.stand())
    pools, offers = own_pools({"m": POLICY})
    relays = ("relay-1", "relay-2")
    dispatcher = Dispatcher(Machine(pools, offers), MEMBERS, leadership.epoch or 0, "text", relays, clock=clock)
    return Term(dispatcher, leadership, relays, "one", clock)


def connect(host: Any, clock: FakeTime, *said: Any) -> tuple[RelaySession, Line]:
    line = Line()
    session = RelaySession(host, line, clock)  # type: ignore[arg-type]
    for message in said:
        session.on_message(message)
    return session, line


def ask(host: Any, clock: FakeTime) -> Status:
    _, line = connect(host, clock, AskStatus(PROTOCOL))
    [status] = line.sent
    assert isinstance(status, Status)
    assert line.closed
    return status


def test_a_standby_says_that_it_stands_by(clock: FakeTime) -> None:
    assert ask(Standby(), clock) == Status("standby")


def test_one_that_too_few_relays_obey_is_a_candidate(term: Term, clock: FakeTime) -> None:
    connect(term, clock, Hello(PROTOCOL, "relay-2", "run-2"), Reported())
    clock.now += 0.5
    assert ask(term, clock) == Status("candidate", 1, [RelayStatus("relay-1", 0, None), RelayStatus("relay-2", 0, 0.5)])


def test_a_leader_tells_of_relays_replicas_and_calls(term: Term, clock: FakeTime) -> None:
    sessions = [
        connect(term, clock, Hello(PROTOCOL, name, f"run of {name}"), Reported(), Beat(1, 0))[0]
        for name in ("relay-1", "relay-2")
    ]
    for session in sessions:  # whichever of them probes the replica
        session.on_message(Events([ReplicaUp(REPLICAS[0])]))
        session.on_message(Counted("a", 0))
    sessions[0].on_message(Events([Arrived(Call(f"call-{number}", "m", "standard")) for number in range(3)]))
    term.on_lost(sessions[1])
    assert ask(term, clock) == Status(
        "leader",
        1,
        [RelayStatus("relay-1", 3, 0.0), RelayStatus("relay-2", 0, None)],
        [
            ReplicaStatus("b", "m", is_open=False, seats=8, aboard=0, is_behind=False),
            ReplicaStatus("a", "m", is_open=True, seats=1, aboard=1, is_behind=False, by_tier=[("standard", 1)]),
        ],
        open_replicas=1,
        held=2,
    )


def test_a_replica_that_does_not_say_how_many_streams_it_runs_is_told_of_once(
    clock: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    pools, offers = own_pools({"m": POLICY})
    dispatcher = Dispatcher(Machine(pools, offers), MEMBERS, 1, "text", ["relay-1"], clock=clock)
    relay, _ = connect(dispatcher, clock, Hello(PROTOCOL, "relay-1", "run"), Reported())
    say = relay.on_message

    def wait(seconds: float) -> None:
        for number in range(round(seconds / 0.5)):
            clock.now += 0.5
            say(Beat(number + 1, number))
            dispatcher.tick()

    def silent() -> list[str]:
        return [one.name for one in ask(dispatcher, clock).replicas if one.is_silent]

    def warnings() -> list[str]:
        return [one.getMessage() for one in caplog.records if "how many streams" in one.getMessage()]

    say(Events([ReplicaUp(REPLICAS[0]), ReplicaUp(REPLICAS[1])]))
    say(Counted("b", 0))
    wait(TELL_S - 1.0)
    assert (silent(), warnings()) == ([], [])
    wait(3 * TELL_S)
    assert silent() == ["a"]
    [warning] = warnings()
    assert warning.startswith("replica a is up and takes no calls")
    assert "/metrics" in warning
    say(Counted("a", 0))
    wait(1.0)
    assert (silent(), len(warnings())) == ([], 1)
    assert ask(dispatcher, clock).open_replicas == 2


def test_a_held_call_is_refused_at_its_deadline_and_not_at_the_next_tick(clock: FakeTime) -> None:
    pools, offers = own_pools({"m": POLICY})
    dispatcher = Dispatcher(Machine(pools, offers), MEMBERS[:1], 1, "text", ["relay-1"], clock=clock)
    relay, line = connect(dispatcher, clock, Hello(PROTOCOL, "relay-1", "run"), Reported())
    relay.on_message(Events([ReplicaUp(REPLICAS[0])]))
    relay.on_message(Counted("a", 0))
    relay.on_message(Events([Arrived(Call("aboard", "m", "standard"))]))
    clock.now += 0.033
    until = clock.now + 10.0
    relay.on_message(Events([Arrived(Call(name, "m", "standard")) for name in ("held", "left")]))
    relay.on_message(Events([Left("left")]))
    woken = 0
    while True:
        woken += 1
        relay.on_message(Beat(woken, 0))
        sleep_s = dispatcher.wake()
        if any(isinstance(one, Refuse) for one in line.acted):
            break
        clock.now += sleep_s
    assert until <= clock.now <= until + MIN_SLEEP_S
    assert woken < 10.0 / TICK_S + 5


def test_another_version_is_turned_away(term: Term, clock: FakeTime) -> None:
    _, line = connect(term, clock, AskStatus("0123"))
    [turned] = line.sent
    assert isinstance(turned, Turned)
    assert "0123" in turned.why


def test_the_lag_is_the_most_of_the_last_windows() -> None:
    lag, now = TickLag(), 100.0
    for wait_s in (0.0, 0.1, 0.35, 0.1):
        now += wait_s
        lag.tick(now)
    assert lag.worst_s == pytest.approx(0.25)
    for _ in range(2):
        ticks = round(LAG_WINDOW_S / 0.1) + 1
        for _ in range(ticks):
            now += 0.1
            lag.tick(now)
    assert lag.worst_s == pytest.approx(0.0, abs=1e-9)

"""The express rule and what is around it, each by an example."""

from __future__ import annotations

from math import inf

from headway.core.curve import Curve
from headway.core.machine import Machine
from headway.core.rate_limit import RateLimit
from headway.core.types import (
    Action,
    Arrived,
    Board,
    Call,
    Downgrade,
    Finished,
    Hold,
    Left,
    ModelPolicy,
    Refuse,
    Replica,
    ReplicaDown,
    ReplicaSuspect,
    ReplicaUp,
    Settled,
    Ticked,
    Tier,
    TierPolicy,
    own_pools,
)

# 100 tok/s alone, 50 among 3, 33 among 5: with a margin of 0 a floor of 50 allows 3 streams, one of 100 allows 1.
CURVE = Curve(a=0.005, c=0.005, d=0.0)
TIERS: dict[Tier, TierPolicy] = {
    "ultrafast": TierPolicy(max_held=10, max_hold_s=2.0, floor_tps=100.0),
    "fast": TierPolicy(max_held=10, max_hold_s=2.0, floor_tps=50.0),
    "standard": TierPolicy(max_held=100, max_hold_s=30.0),
    "flex": TierPolicy(max_held=100, max_hold_s=300.0),
}


def machine(
    replicas: int = 2,
    seats: int = 10,
    share: float = 0.5,
    express_wait_s: float = inf,
    models: tuple[str, ...] = ("m",),
) -> Machine:
    policy = ModelPolicy(TIERS, standard_share=share, margin=0.0, express_wait_s=express_wait_s)
    made = Machine(*own_pools(dict.fromkeys(models, policy)))
    for number in range(replicas):
        made.step(ReplicaUp(Replica(f"r{number}", "m", seats, CURVE)), 0.0)
    return made


def arrive(to: Machine, name: str, tier: Tier, now: float = 0.0, **more: object) -> list[Action]:
    return to.step(Arrived(Call(name, "m", tier, **more)), now)  # type: ignore[arg-type]


def board_many(to: Machine, count: int, tier: Tier = "standard", now: float = 0.0) -> None:
    for number in range(count):
        arrive(to, f"{tier}{number}", tier, now)


def fast(call_id: str, replica: str, rate_limit: RateLimit | None = None) -> Board:
    return Board(call_id, replica, "fast", floor_tps=50.0, rate_limit=rate_limit)


def loads(of: Machine) -> list[int]:
    return [of.pools["m"].aboard(f"r{number}") for number in range(of.pools["m"].known_replicas)]


def test_fast_calls_share_a_light_replica_up_to_what_the_floor_allows() -> None:
    m = machine()
    boarded = [arrive(m, f"f{number}", "fast")[0] for number in range(3)]
    assert boarded == [fast(f"f{number}", "r0") for number in range(3)]
    # The fourth would have to make the other replica light, and the standard share keeps that one.
    assert arrive(m, "f3", "fast", 1.0) == [Hold("f3", for_s=2.0)]


def test_standard_calls_go_where_no_express_stream_is() -> None:
    m = machine()
    arrive(m, "f", "fast")
    board_many(m, 8)
    assert loads(m) == [1, 8]


def test_a_light_replica_takes_nobody_beyond_its_limit() -> None:
    m = machine()
    arrive(m, "f", "fast")
    board_many(m, 30)
    assert loads(m)[0] <= 3
    assert loads(m)[1] == 10


def test_a_stricter_floor_lowers_the_limit() -> None:
    m = machine()
    arrive(m, "u", "ultrafast")
    assert arrive(m, "f", "fast", 1.0) == [Hold("f", for_s=2.0)]
    assert m.step(Finished("u", 1, 1), 1.5) == [Settled("u", 1_500_000), fast("f", "r0")]


def test_a_call_with_a_floor_never_boards_a_replica_that_is_too_full() -> None:
    m = machine(replicas=1)
    board_many(m, 5)
    assert arrive(m, "f", "fast", 1.0) == [Hold("f", for_s=2.0)]
    # Its doors are closed now: standard calls wait, and it empties until the fast call fits.
    assert arrive(m, "late", "standard", 1.0)[0] == Hold("late", for_s=30.0)
    # A fifth of the first second each; from then on a tenth of the replica's time, the part of one seat of ten.
    assert m.step(Finished("standard0", 1, 1), 1.1) == [Settled("standard0", 210_000)]
    assert m.step(Finished("standard1", 1, 1), 1.2) == [Settled("standard1", 220_000)]
    assert m.step(Finished("standard2", 1, 1), 1.3) == [
        Settled("standard2", 230_000),
        fast("f", "r0"),
    ]


def test_when_the_last_express_stream_leaves_the_replica_is_heavy_again() -> None:
    m = machine(replicas=1)
    arrive(m, "f", "fast")
    board_many(m, 9)
    assert loads(m) == [3]
    m.step(Left("f"), 1.0)
    m.step(Ticked(), 7.0)  # the reserve has forgotten it
    assert loads(m) == [9]


def test_light_seats_are_kept_ready_after_a_burst_and_given_back_later() -> None:
    m = machine(replicas=4, share=0.25, express_wait_s=0.4)
    for number in range(6):
        arrive(m, f"f{number}", "fast")
    board_many(m, 60)
    for number in range(6):
        m.step(Finished(f"f{number}", 1, 1), 1.0)
    again = [arrive(m, f"g{number}", "fast", 2.0)[0] for number in range(6)]
    assert all(isinstance(action, Board) for action in again)
    for number in range(6):
        m.step(Finished(f"g{number}", 1, 1), 3.0)
    assert m.pools["m"].light_replicas == 3
    m.step(Ticked(), 130.0)
    assert m.pools["m"].light_replicas == 0


def test_light_seats_beyond_the_reserve_carry_standard_calls() -> None:
    m = machine()
    arrive(m, "f", "fast")
    board_many(m, 30)
    assert loads(m) == [3, 10]


def test_the_standard_share_is_never_taken() -> None:
    m = machine(replicas=4, share=0.5)
    board_many(m, 4)
    for number in range(40):
        arrive(m, f"f{number}", "fast")
        assert m.pools["m"].light_replicas <= 2


def test_without_a_seat_in_time_a_fast_call_is_refused_or_downgraded_as_it_asked() -> None:
    m = machine()
    for number in range(3):
        arrive(m, f"f{number}", "fast")
    arrive(m, "hard", "fast", 1.0)
    arrive(m, "soft", "fast", 1.0, falls_back=True)
    refusal, downgrade, board = m.step(Ticked(), 3.0)
    assert isinstance(refusal, Refuse)
    assert (refusal.call_id, refusal.reason) == ("hard", "hold_timeout")
    assert downgrade == Downgrade("soft", "hold_timeout")
    assert board == Board("soft", "r1", "standard", reason="hold_timeout")


def test_a_replica_without_a_curve_promises_nothing() -> None:
    m = Machine(*own_pools({"m": ModelPolicy(TIERS, margin=0.0)}))
    m.step(ReplicaUp(Replica("r0", "m", 10)), 0.0)
    assert arrive(m, "f", "fast") == [Hold("f", for_s=2.0)]
    assert arrive(m, "s", "standard") == [Board("s", "r0", "standard")]


def test_held_calls_board_in_the_order_of_tiers() -> None:
    m = machine(replicas=1, seats=1)
    arrive(m, "a", "standard")
    arrive(m, "x", "flex", 1.0)
    arrive(m, "s", "standard", 1.0)
    arrive(m, "f", "fast", 1.0)
    assert m.step(Finished("a", 1, 1), 1.5) == [Settled("a", 1_500_000), fast("f", "r0")]
    assert Board("s", "r0", "standard") in m.step(Left("f"), 2.0)


def test_a_tenant_that_was_served_less_comes_first() -> None:
    m = machine(replicas=1, seats=1)
    arrive(m, "g0", "standard", tenant="greedy")
    for number in range(1, 4):
        arrive(m, f"g{number}", "standard", tenant="greedy")
    arrive(m, "p0", "standard", tenant="poor")
    assert m.step(Finished("g0", 100, 500), 1.0) == [Settled("g0", 1_000_000), Board("p0", "r0", "standard")]
    assert m.step(Finished("p0", 1, 1), 2.0) == [Settled("p0", 1_000_000), Board("g1", "r0", "standard")]


def test_the_last_replica_left_takes_the_express_calls_that_wait() -> None:
    """With two replicas and a standard share of all, none may be light; a single one may."""
    tiers: dict[Tier, TierPolicy] = {"fast": TierPolicy(10, 30.0, floor_tps=50.0), "standard": TierPolicy(10, 30.0)}
    for event in (ReplicaDown("r1"), ReplicaSuspect("r1")):
        m = Machine(*own_pools({"m": ModelPolicy(tiers, standard_share=1.0)}))
        for name in ("r0", "r1"):
            m.step(ReplicaUp(Replica(name, "m", 4, Curve(0.005, 0.001, 0.0))), 0.0)
        assert [type(one) for one in m.step(Arrived(Call("a", "m", "fast")), 1.0)] == [Hold]
        [board] = [one for one in m.step(event, 2.0) if isinstance(one, Board)]
        assert (board.call_id, board.replica) == ("a", "r0")


# --- targets: a usual speed above the floor --------------------------------------------------------------------------


def with_target(target_tps: float) -> Machine:
    tiers = {**TIERS, "fast": TierPolicy(max_held=10, max_hold_s=2.0, floor_tps=50.0, target_tps=target_tps)}
    made = Machine(*own_pools({"m": ModelPolicy(tiers, standard_share=0.5, margin=0.0, express_wait_s=inf)}))
    for number in range(2):
        made.step(ReplicaUp(Replica(f"r{number}", "m", 10, CURVE)), 0.0)
    return made


def test_with_a_target_fewer_streams_share_a_replica_with_a_fast_one() -> None:
    to = with_target(66.0)  # among 2, where the floor allows 3
    board_many(to, 1, "fast")
    board_many(to, 30)
    assert sorted(loads(to)) == [2, 10]


def test_a_target_that_no_replica_reaches_costs_riders_and_not_the_tier() -> None:
    to = with_target(1_000.0)
    assert arrive(to, "a", "fast") == [fast("a", "r0")]
    board_many(to, 30)
    assert sorted(loads(to)) == [1, 10]

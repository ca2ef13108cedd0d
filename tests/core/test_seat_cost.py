"""Replicas of one pool with other curves: those whose light seats cost least in throughput are light."""

from __future__ import annotations

from headway.core.curve import Curve
from headway.core.invariants import check_pool
from headway.core.pool import Pool
from headway.core.seat_cost import cost_of_light_seat
from headway.core.types import Call, ModelPolicy, Replica, Tier, TierPolicy, own_pools

SEATS = 64
PLAIN = Curve(a=0.008, c=0.0003, d=0.0)  # 14 light seats; 2,350 tok/s at all seats
DRAFTER = Curve(a=0.00227, c=0.0005, d=0.0)  # 20 light seats; 1,867 tok/s: three times as fast for one stream
MEASURED_AGAIN = Curve(a=0.0081, c=0.0003, d=0.0)
TIERS: dict[Tier, TierPolicy] = {"fast": TierPolicy(10, 5.0, floor_tps=74.0), "standard": TierPolicy(1000, 60.0)}
FAST, STANDARD = Call("f", "m", "fast"), Call("s", "m", "standard")


def pool_of(*curves: Curve) -> Pool:
    pools, offers = own_pools({"m": ModelPolicy(TIERS, standard_share=0.1)})
    pool = Pool(pools["m"], offers)
    for number, curve in enumerate(curves):
        pool.replica_up(Replica(f"r{number}", "m", SEATS, curve), 0.0)
    return pool


def board(pool: Pool, call: Call, name: str) -> str | None:
    replica = pool.seat(Call(name, call.model, call.tier), set(), 0.0)
    check_pool(pool, 0.0)
    return replica


def light(pool: Pool) -> set[str]:
    return {name for name, state in pool.doors.replicas.items() if state.light}


def test_a_light_seat_costs_the_throughput_that_its_replica_gives_up() -> None:
    assert round(cost_of_light_seat(Replica("r", "m", SEATS, PLAIN), 14)) == 168
    assert round(cost_of_light_seat(Replica("r", "m", SEATS, DRAFTER), 20)) == 93


def test_replicas_whose_light_seats_cost_less_are_light_first() -> None:
    pool = pool_of(PLAIN, DRAFTER, PLAIN)
    for number in range(2 * SEATS):  # the drafter's replica is no emptier than others
        board(pool, STANDARD, f"s{number}")
    pool.doors.provide(1, 0.0)
    check_pool(pool, 0.0)
    assert light(pool) == {"r1"}
    pool.doors.provide(21, 0.0)
    assert len(light(pool)) == 2


def test_calls_with_a_floor_board_there_while_it_has_room() -> None:
    pool = pool_of(PLAIN, DRAFTER, PLAIN)
    assert [board(pool, FAST, f"f{number}") for number in range(20)] == ["r1"] * 20
    assert board(pool, FAST, "f20") == "r0"
    assert board(pool, STANDARD, "s") == "r2"


def test_replicas_whose_light_seats_cost_more_retire_first() -> None:
    pool = pool_of(PLAIN, DRAFTER, PLAIN)
    for number in range(21):
        board(pool, FAST, f"f{number}")
    assert light(pool) == {"r0", "r1"}
    for number in range(1, 20):
        pool.free(f"f{number}", "r1", 0.0)
    pool.doors.provide(2, 0.0)  # each carries one
    check_pool(pool, 0.0)
    retiring = {name for name, state in pool.doors.replicas.items() if state.retiring}
    assert retiring == {"r0"}


def test_curves_that_differ_as_measurements_do_are_alike() -> None:
    pool = pool_of(PLAIN, MEASURED_AGAIN)
    assert [state.rank for state in pool.doors.replicas.values()] == [0, 0]


def test_ranks_follow_the_fleet() -> None:
    pool = pool_of(PLAIN, DRAFTER)
    states = pool.doors.replicas
    assert states["r0"].rank > states["r1"].rank == 0
    board(pool, FAST, "f")
    pool.replica_gone("r1", 0.0)
    check_pool(pool, 0.0)
    assert states["r0"].rank == 0
    pool.replica_changed(Replica("r0", "m", SEATS, DRAFTER), 0.0)
    pool.replica_up(Replica("r2", "m", SEATS, PLAIN), 0.0)
    check_pool(pool, 0.0)
    assert states["r2"].rank > states["r0"].rank == 0
    pool.replica_up(Replica("r3", "m", SEATS), 0.0)  # without a curve it is never light
    check_pool(pool, 0.0)
    assert board(pool, FAST, "f2") == "r0"

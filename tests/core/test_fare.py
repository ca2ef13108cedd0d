"""Seat-time is conserved to the microsecond, and falls on those it should."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headway.core.fare import SeatTime

SEATS = 8


class Replica:
    """Whoever is aboard, and the clock; as boarding uses it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.light = False
        self.aboard: list[tuple[bool, int]] = []  # express?, mark
        self.time = SeatTime(SEATS, self.now)
        self.paid_us: list[int] = []

    def passes(self, seconds: float) -> None:
        self.now += seconds
        express = sum(kind for kind, _ in self.aboard)
        self.time.advance(self.now, express=express, others=len(self.aboard) - express, light=self.light)

    def board(self, *, express: bool) -> None:
        self.aboard.append((express, self.time.taken(express=express)))

    def leave(self, which: int = 0) -> int:
        express, mark = self.aboard.pop(which)
        self.paid_us.append(self.time.charge(mark, express=express, is_last=not self.aboard))
        return self.paid_us[-1]


def test_streams_on_a_heavy_replica_share_every_second_equally() -> None:
    replica = Replica()
    replica.board(express=False)
    replica.passes(2.0)
    replica.board(express=False)
    replica.passes(2.0)
    assert replica.leave() == 3_000_000
    replica.passes(1.0)
    assert replica.leave() == 2_000_000
    assert replica.time.busy_us == 5_000_000


def test_empty_seats_of_a_light_replica_are_paid_by_its_express_streams() -> None:
    replica = Replica()
    replica.light = True
    replica.board(express=True)
    replica.board(express=True)
    replica.board(express=False)
    replica.passes(8.0)
    assert replica.leave(2) == 1_000_000  # one seat of eight
    assert replica.leave() == replica.leave() == 3_500_000


def test_the_reserve_is_charged_to_no_call() -> None:
    replica = Replica()
    replica.light = True
    replica.passes(10.0)
    replica.board(express=False)
    replica.passes(8.0)
    assert replica.leave() == 1_000_000
    assert replica.time.reserve_us == 17_000_000


def test_an_idle_heavy_replica_costs_nobody_anything() -> None:
    replica = Replica()
    replica.passes(100.0)
    assert replica.time.busy_us == 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["board", "board", "board express", "leave", "leave", "turn"]),
            st.floats(0, 30) | st.floats(0, 1e-5),
            st.integers(0, 100),
        ),
        max_size=120,
    )
)
def test_what_calls_paid_and_the_reserve_is_what_the_replica_was_busy(
    steps: list[tuple[str, float, int]],
) -> None:
    replica = Replica()
    for what, seconds, which in steps:
        replica.passes(seconds)
        if what.startswith("board"):
            replica.board(express=what == "board express")
        elif what == "turn":
            replica.light = not replica.light
        elif replica.aboard:
            assert replica.leave(which % len(replica.aboard)) >= 0
    while replica.aboard:
        replica.passes(0.1)
        replica.leave()
    assert sum(replica.paid_us) + replica.time.reserve_us == replica.time.busy_us

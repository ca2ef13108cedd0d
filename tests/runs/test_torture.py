"""The judge of the torture sees each kind of wrong, and nothing where nothing is wrong."""

from __future__ import annotations

import copy
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest

from runs.torture.callers import Ended, Proof
from runs.torture.judge import NO_RELAY, UNREADY, Done, Evidence, Judgement, Rules, judge
from runs.torture.plan import KINDS, plan
from runs.torture.shrink import shrink
from runs.torture.witness import Row, Slice, Stream
from runs.torture.workload import draw

ENGINE = "http://127.0.0.1:1"
RULES = Rules(
    seats=3,
    beside={"standard": 3, "fast": 1},
    floors={"fast": 50.0},
    prices={"m": (1_000_000, 10_000_000)},
    multiples_milli={"standard": 1000, "fast": 3000},
    max_hold_s={"standard": 8.0, "fast": 3.0},
    step_s=0.02,
    stall_s=4.0,
)


def entry(kind: str, amount: int, tier: str = "standard", **more: object) -> Row:
    plain = Row(
        f"c:1:{kind}", "c", 1, kind, "2026-11-19", "g/1", "key-open-1", "m", ENGINE, tier, 1_000_000, 10_000_000,
        1000, amount, "finished", 5 if kind == "served" else 0, 20 if kind == "served" else 0, 0, 0,
    )  # fmt: skip
    return replace(plain, **more)  # type: ignore[arg-type]


def call(tier: str = "standard", **more: object) -> Ended:
    proof = Proof(kept=True, billed_micro=615 if tier == "fast" else 205, refunded_micro=0)
    ended = Ended("completion", True, "key-open-1", tier, 20, 1.0, 1.1, 1.5, "complete", "c", "relay-1", "", 20, proof)  # noqa: FBT003
    for name, value in more.items():
        setattr(ended, name, value)
    return ended


def stream(speed_tps: float = 60.0) -> Stream:
    last_s = 1.1 + 19 / speed_tps
    return Stream("c", 0, ENGINE, 5, 1.05, 20, 1.1, last_s, last_s, "finished")


def evidence(tier: str = "standard", speed_tps: float = 60.0) -> Evidence:
    amount = 205 * (3 if tier == "fast" else 1)
    rows = [entry("released", -900, tier), entry("reserved", 900, tier), entry("served", amount, tier)]
    return Evidence([call(tier)], [stream(speed_tps)], rows, [], [], RULES, {})


def found(given: Evidence) -> dict[str, list[str]]:
    return {what: cases for what, cases in judge(given).findings.items() if cases}


@pytest.mark.parametrize("tier", ["standard", "fast"])
def test_a_call_that_is_right(tier: str) -> None:
    judged = judge(evidence(tier))
    assert not any(judged.findings.values())
    assert judged.in_books == 1


@pytest.mark.parametrize(("until_s", "how"), [(1.0, "explained"), (-9.0, "found")])
def test_a_call_that_no_relay_was_ready_for(until_s: float, how: str) -> None:
    """As is documented, if no engine runs."""
    refused = call(how="no answer", call_id="", relay=NO_RELAY, proof=None)
    out = [
        Done("engine killed", [ENGINE], ["dies"], -10.0, 1.0),
        Done("engine stopped", ["b"], ["stands"], -9.5, until_s),
    ]
    judged = judge(Evidence([refused], [], [], [], out, RULES, {}, engines=(ENGINE, "b")))
    assert [bool(judged.explained[UNREADY]), bool(judged.findings["no answer"])] == [how == "explained", how == "found"]


def _drop(kind: str) -> Callable[[Evidence], None]:
    def wrong(given: Evidence) -> None:
        given.rows = [row for row in given.rows if row.kind != kind]

    return wrong


def _change(**fields: object) -> Callable[[Evidence], None]:
    def wrong(given: Evidence) -> None:
        given.rows = [replace(row, **fields) if row.kind == "served" else row for row in given.rows]  # type: ignore[arg-type]

    return wrong


def _lost(given: Evidence) -> None:
    given.rows = []


def _doubled(given: Evidence) -> None:
    given.rows = [*given.rows, copy.copy(given.rows[-1])]


def _spent(given: Evidence) -> None:
    rows = [replace(row, key="key-poor") for row in given.rows]
    given.rows = [replace(row, amount=70_000) if row.kind == "served" else row for row in rows]


def _leased(given: Evidence) -> None:
    given.slices = [Slice("key-poor", "2026-11-19", "g/1", 60_001)]
    given.rows = [replace(row, key="key-poor") for row in given.rows]


def _call(**fields: object) -> Callable[[Evidence], None]:
    def wrong(given: Evidence) -> None:
        given.calls = [call(**fields)]  # type: ignore[arg-type]

    return wrong


@pytest.mark.parametrize(
    ("what", "wrong"),
    [
        ("lost", _lost),
        ("doubled", _doubled),
        ("never closed", _drop("released")),
        ("over-billed", _change(output_tokens=21, amount=215)),
        ("over-billed", _change(prompt_tokens=6, amount=206)),
        ("complete, and not exact", _change(output_tokens=19, amount=195)),
        ("wrong amount", _change(amount=206)),
        ("billed to another key", _change(key="key-open-2")),
        ("budget exceeded", _spent),
        ("budget exceeded", _leased),
        ("told another bill", _call(proof=Proof(billed_micro=204))),
        ("cut", _call(how="cut")),
        ("no answer", _call(how="no answer")),
        ("too late", _call(how="hangs")),
        ("too late", _call(ended_s=90.0)),
        ("refused without retry-after", _call(how="refused", words="429 hold_timeout")),
        ("a valid key refused", _call(how="refused", words="401 invalid_api_key")),
    ],
)
def test_what_is_wrong_is_found(what: str, wrong: Callable[[Evidence], None]) -> None:
    given = evidence()
    wrong(given)
    assert what in found(given)


def test_a_missed_floor_needs_its_refund() -> None:
    given = evidence("fast", speed_tps=40.0)
    given.calls = [call("fast", proof=None)]
    assert "missed, not refunded" in found(given)
    late = {
        "received": 20,
        "early": 1,
        "first_token_s": 1.2,
        "last_token_s": 1.5,
    }  # on its way; the client got 63 tok/s
    given.calls = [call("fast", proof=None, **late)]
    assert found(given) == {}
    assert judge(given).explained["missed, not refunded"]
    given.calls = [call("fast", proof=None)]
    given.rows = [entry("refunded", -410, "fast"), *given.rows]
    assert found(given) == {}
    given.calls = [call("fast", proof=Proof(kept=True, billed_micro=205, refunded_micro=410))]
    assert "proof and refund differ" in found(given)
    given.rows = [entry("refunded", -400, "fast"), *given.rows[1:]]
    assert "wrong refund" in found(given)


def test_a_stream_too_many_is_found_unless_its_relay_stood() -> None:
    given = evidence()
    given.streams = [stream()] + [replace(stream(), call_id=f"o{number}", received_s=1.06) for number in range(3)]
    assert len(found(given)["streams above a limit"]) == 1
    given.calls = [call(call_id=one.call_id) for one in given.streams]
    given = replace(given, faults=[Done("relay stopped", ["relay-1"], ["stands"], 1.0, 1.2)])
    judged: Judgement = judge(given)
    assert "streams above a limit" not in {what for what, cases in judged.findings.items() if cases}
    assert len(judged.explained["streams above a limit"]) == 1


@pytest.mark.parametrize(("how", "count"), [("complete", 0), ("cut", 1)])
def test_the_end_of_a_stream_may_be_missing_from_the_record_of_a_killed_engine(how: str, count: int) -> None:
    given = evidence()
    given.calls = [call(how=how)]
    given.streams = [replace(given.streams[0], state="killed", ended_s=3.0)]
    last_s = given.streams[0].last_s
    given.streams += [Stream(f"other-{n}", 0, ENGINE, 5, last_s + 0.01, state="killed", ended_s=3.0) for n in range(3)]
    assert len(judge(given).findings["streams above a limit"]) == count


@pytest.mark.parametrize("relay", ["relay-1", "relay-2"])
def test_what_a_full_disk_did_not_take_is_not_billed_after_a_kill(relay: str) -> None:
    rows = [replace(row, outcome="gateway_lost", output_tokens=1) for row in evidence().rows]
    full = Done("relay disk full", [relay], ["writes nothing"], 1.1, 1.3)
    given = Evidence([call(how="cut", received=20)], [stream()], rows, [], [full], RULES, {})
    assert ("too little billed of a killed stream" in found(given)) == (relay == "relay-2")


def test_a_fast_stream_makes_its_replica_light() -> None:
    given = evidence("fast")
    given.streams = [stream(), replace(stream(), call_id="o", received_s=1.06)]
    assert "streams above a limit" in found(given)


def test_a_call_whose_relay_died_may_end_without_an_answer() -> None:
    given = evidence()
    given.calls = [call(how="cut", proof=None)]
    given = replace(given, faults=[Done("relay killed", ["relay-1"], ["dies"], 1.2, 1.9)])
    assert found(given) == {}
    given = replace(given, faults=[Done("relay killed", ["relay-2"], ["dies"], 1.2, 1.9)])
    assert "cut" in found(given)


def test_a_stream_that_went_on_is_billed_once() -> None:
    given = evidence()
    other = "http://127.0.0.1:2"
    given.streams = [
        replace(stream(), engine=other, tokens=8, ended_s=1.2, state="killed"),
        replace(stream(), prompt_tokens=5 + 7, tokens=13, received_s=1.3, ended_s=1.6),
    ]
    assert found(given) == {}
    given.rows = [*given.rows[:-1], replace(given.rows[-1], output_tokens=21, amount=215)]
    assert "over-billed" in found(given)


def test_a_seed_gives_the_same_plan_and_the_same_calls() -> None:
    assert plan(7, 1000, 50) == plan(7, 1000, 50) != plan(8, 1000, 50)
    assert draw(random.Random(3)) == draw(random.Random(3))


def test_no_kind_of_fault_is_above_a_fifth() -> None:
    kinds = Counter(fault.kind for fault in plan(1, 100_000, 5_000))
    assert len(kinds) == len(KINDS) >= 20
    assert max(kinds.values()) / 5_000 < 0.2


@pytest.mark.parametrize("guilty", [{17}, {3, 71}, {0, 1, 99}])
def test_a_failing_plan_is_shrunk_to_what_makes_it_fail(guilty: set[int]) -> None:
    assert set(shrink(range(100), lambda plan: guilty <= set(plan))) == guilty


def test_a_plan_that_does_not_fail_has_no_smallest_one() -> None:
    assert shrink(range(100), lambda _: False) == []

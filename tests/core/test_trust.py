"""The decisions of an auto model: what is sampled, taken, audited, and when the gate closes."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.trust import (
    KEEP_S,
    AskFull,
    AskStudent,
    AuditEnded,
    AuditNotKept,
    AuditRecalled,
    AutoArrived,
    AutoLeft,
    CloseGate,
    ComparisonLost,
    LimitPolicy,
    StudentAnswered,
    StudentFailed,
    TakeAnswer,
    Trust,
    TrustDecision,
    TrustPolicy,
    Verdict,
    WriteVerdict,
)
from headway.core.types import Ticked

LIMIT = LimitPolicy(budget=0.02, level=0.5, may_differ=0.03, audit_share=0.25)
SAMPLED, UNSAMPLED = 0.1, 0.9


def trust(**more: object) -> Trust:
    return Trust(replace(TrustPolicy([LIMIT], max_waiting=2), **more))  # type: ignore[arg-type]


def ask(of: Trust, call_id: str, dice: float = SAMPLED, score: float = 1.0, now: float = 0.0) -> list[TrustDecision]:
    """The decisions on a call that arrives and is answered at once."""
    decisions = of.step(AutoArrived(call_id, "", dice), now)
    if decisions == [AskStudent(call_id)]:
        decisions = of.step(StudentAnswered(call_id, score), now)
    of.check()
    return decisions


def state(of: Trust) -> object:
    return deepcopy([of.watch_of(""), of.waiting, of.is_closed, of._limits, of._calls, of._compared, of._last_number])


def test_the_sample_is_drawn_when_the_call_arrives() -> None:
    of = trust()
    assert ask(of, "a", UNSAMPLED) == [TakeAnswer("a", 0, 0.02)]
    assert ask(of, "b", SAMPLED) == [TakeAnswer("b", 1, 0.02)]
    assert list(of.waiting) == [1]
    assert of.watch_of("").audited == 0


def test_only_what_reaches_the_level_is_taken() -> None:
    of = trust()
    assert ask(of, "a", UNSAMPLED, 0.49) == [AskFull("a", "unsure")]
    of.step(AutoArrived("b", "", UNSAMPLED), 0.0)
    assert of.step(StudentAnswered("b", 0.0, "unparsable"), 0.0) == [AskFull("b", "unparsable")]
    any_score = Trust(TrustPolicy([replace(LIMIT, level=0.0)]))
    assert ask(any_score, "c", UNSAMPLED, 0.0) == [AskFull("c", "unsure")]


def test_verdicts_count_in_the_order_of_the_sample() -> None:
    """A call that is escalated counts as agreeing, but not before the audit that was sampled before it."""
    of = trust()
    ask(of, "a")
    assert ask(of, "b", SAMPLED, 0.1) == [AskFull("b", "unsure"), WriteVerdict(2, 0.02, "escalated")]
    ask(of, "c")
    watch = of.watch_of("")
    assert of.step(AuditEnded(3, "same"), 0.0) == [WriteVerdict(3, 0.02, "same")]
    assert watch.audited == 0
    of.step(AuditEnded(1, "same"), 0.0)
    assert (watch.audited, watch.excess) == (3, 0)
    of.check()


def test_nothing_is_taken_while_too_many_audits_wait() -> None:
    of = trust()
    taken = [ask(of, str(number)) for number in range(3)]
    assert [type(one[0]) for one in taken] == [TakeAnswer] * 3
    assert ask(of, "late", UNSAMPLED) == [AskFull("late", "audits waiting")]
    of.step(AuditEnded(2, "same"), 0.0)
    assert ask(of, "again", UNSAMPLED) == [TakeAnswer("again", 0, 0.02)]


def test_a_call_that_is_not_sampled_changes_nothing() -> None:
    """Nor does one that arrives while too many audits wait: a simulation may skip them."""
    of, waiting = trust(), trust()
    ask(of, "a", UNSAMPLED)
    ask(of, "b", UNSAMPLED, 0.1)
    assert state(of) == state(trust())
    for number in range(3):
        ask(waiting, str(number))
    before = state(waiting)
    ask(waiting, "late", SAMPLED)
    assert state(waiting) == before


def test_a_call_that_arrived_before_is_not_taken_either() -> None:
    of = trust()
    for name in ("early", "sampled"):
        of.step(AutoArrived(name, "", UNSAMPLED if name == "early" else SAMPLED), 0.0)
    for number in range(3):
        ask(of, str(number))
    assert of.step(StudentAnswered("early", 1.0), 0.0) == [AskFull("early", "audits waiting")]
    assert of.step(StudentAnswered("sampled", 1.0), 0.0) == [AskFull("sampled", "audits waiting")]
    of.check()


def test_in_doubt_the_full_model_serves_and_is_compared() -> None:
    of = trust()
    ask(of, "a")
    of.step(AutoArrived("under way", "", UNSAMPLED), 0.0)
    of.step(AuditEnded(1, "differs"), 0.0)
    assert of.is_in_doubt("")
    assert of.step(StudentAnswered("under way", 1.0), 0.0) == [AskFull("under way", "in doubt")]
    assert ask(of, "b", UNSAMPLED) == [AskFull("b", "in doubt", 2)]
    assert ask(of, "c", UNSAMPLED, 0.1) == [AskFull("c", "unsure"), WriteVerdict(3, 0.02, "escalated")]
    assert of.waiting == {}
    assert of.step(ComparisonLost(2), 0.0) == []  # its client left: nothing was taken, nothing counts
    of.check()
    count = 0
    while of.is_in_doubt(""):
        [decision] = ask(of, f"d{count}", UNSAMPLED)
        assert isinstance(decision, AskFull)
        of.step(AuditEnded(decision.compare, "same"), 0.0)
        count += 1
        assert count < 60
    assert ask(of, "e", UNSAMPLED) == [TakeAnswer("e", 0, 0.02)]


def test_a_difference_raises_doubts_even_before_it_counts() -> None:
    of = trust()
    ask(of, "a")
    ask(of, "b")
    of.step(AuditEnded(2, "differs"), 0.0)
    assert of.watch_of("").audited == 0
    assert ask(of, "c", UNSAMPLED) == [AskFull("c", "in doubt", 3)]


def test_what_is_refused_or_expires_differs() -> None:
    of = trust()
    ask(of, "a", now=10.0)
    ask(of, "b", now=20.0)
    assert of.step(AuditEnded(1, "refused"), 30.0) == [WriteVerdict(1, 0.02, "refused")]
    assert of.step(Ticked(), 20.0 + KEEP_S - 1) == []
    assert of.step(Ticked(), 20.0 + KEEP_S)[0] == WriteVerdict(2, 0.02, "expired")
    assert (of.watch_of("").audited, of.watch_of("").excess) == (2, 2)
    assert of.step(AuditEnded(2, "same"), 20.0 + KEEP_S) == []  # too late


def test_enough_differences_close_the_gate() -> None:
    of = trust(max_waiting=100)
    number, decisions = 0, list[TrustDecision]()
    while not any(isinstance(one, CloseGate) for one in decisions):
        [decision] = ask(of, f"call {number}")
        decisions = of.step(AuditEnded(number + 1, "differs"), 0.0)
        number += 1
        assert number < 20
    assert isinstance(decision, AskFull | TakeAnswer)
    assert decisions[-1] == CloseGate(f"{number} of {number} audited calls differ; at most 3.00% may")
    assert ask(of, "late") == [AskFull("late", "closed")]
    of.check()


def test_what_the_student_is_not_asked() -> None:
    of = trust()

    def why(**facts: object) -> str:
        [decision] = of.step(replace(AutoArrived("a", "", SAMPLED), **facts), 0.0)  # type: ignore[arg-type]
        return decision.why if isinstance(decision, AskFull) else ""

    assert why(can_weigh=False) == "not weighed"
    assert why(is_calibrated=False) == "not calibrated"
    assert why(can_keep=False) == "audit not kept"
    assert why(prompt_score=1.0) == "free text"
    of = trust(free_text=True)
    assert why(prompt_score=0.1) == "unsure"
    assert why(prompt_score=1.0, is_calibrated=False) == "not calibrated"
    assert of.step(AutoArrived("a", "", SAMPLED, prompt_score=1.0), 0.0) == [TakeAnswer("a")]  # it is not sampled
    assert of.step(StudentFailed("a", "student failed"), 0.0) == [AskFull("a", "student failed")]
    of = trust(is_closed=True)
    assert why() == "closed"


def test_calls_that_end_otherwise_leave_nothing_behind() -> None:
    of = trust()
    of.step(AutoArrived("failed", "", SAMPLED), 0.0)
    assert of.step(StudentFailed("failed", "student failed"), 0.0) == [
        AskFull("failed", "student failed"),
        WriteVerdict(1, 0.02, "escalated"),
    ]
    of.step(AutoArrived("left", "", SAMPLED), 0.0)
    assert of.step(AutoLeft("left"), 0.0) == []
    [taken] = ask(of, "not kept")
    assert of.step(AuditNotKept("not kept", 3), 0.0) == [AskFull("not kept", "audit not kept")]
    assert taken == TakeAnswer("not kept", 3, 0.02)
    of.check()
    assert of.watch_of("").audited == 1


def test_tenants_have_limits_of_their_own() -> None:
    strict = LimitPolicy(budget=0.01, level=0.9, may_differ=0.02, audit_share=0.5)
    of = Trust(TrustPolicy([LIMIT, strict], {"key-a": 1}))
    of.step(AutoArrived("a", "key-a", 0.4), 0.0)
    assert of.step(StudentAnswered("a", 0.95), 0.0) == [TakeAnswer("a", 1, 0.01)]
    assert ask(of, "b", 0.4, 0.6) == [TakeAnswer("b", 0, 0.02)]
    of.step(AuditEnded(1, "differs"), 0.0)
    assert of.is_in_doubt("key-a")
    assert not of.is_in_doubt("")


calls = st.tuples(st.just("call"), st.floats(0, 1, exclude_max=True), st.floats(0, 1))
verdicts = st.tuples(st.just("verdict"), st.integers(0, 20), st.sampled_from(["same", "same", "differs", "refused"]))


@settings(max_examples=200)
@given(st.lists(st.one_of(calls, verdicts), max_size=80))
def test_a_restart_rebuilds_the_same_trust(walk: list[tuple[str, float, float | str]]) -> None:
    """At every moment the rows that were written so far give the same watch, the same doubt and the same audits."""
    of = trust(max_waiting=5)
    rows: dict[int, AuditRecalled] = {}

    def write(decisions: list[TrustDecision]) -> None:
        for one in decisions:
            if isinstance(one, TakeAnswer) and one.audit:
                rows[one.audit] = AuditRecalled(one.audit, one.budget, 0.0)
            elif isinstance(one, WriteVerdict):
                rows[one.number] = AuditRecalled(one.number, one.budget, 0.0, one.verdict)
            elif isinstance(one, AskFull) and one.compare:
                write(of.step(AuditEnded(one.compare, "same"), 0.0))

    for step, (kind, first, second) in enumerate(walk):
        if kind == "call":
            assert isinstance(second, float)
            write(ask(of, str(step), first, second))
        elif of.waiting:
            number = list(of.waiting)[int(first) % len(of.waiting)]
            verdict: Verdict = second  # type: ignore[assignment]
            write(of.step(AuditEnded(number, verdict), 0.0))
        of.check()
        again = trust(max_waiting=5)
        for number in sorted(rows):
            again.step(rows[number], 0.0)
        again.check()
        assert again.watch_of("") == of.watch_of("")
        assert list(again.waiting) == sorted(of.waiting)
        assert (again.is_closed, again.is_in_doubt("")) == (of.is_closed, of.is_in_doubt(""))

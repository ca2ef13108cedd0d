"""The gate takes what it has reason to take, and nothing else."""

from __future__ import annotations

import random
from math import inf
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.auto.gate import Evidence, Gate, GateAnswer, GateCall, Isotonic, PromptGuess, Seen, is_grounded, weigh

TIMER = {
    "type": "object",
    "properties": {"minutes": {"type": "integer"}, "label": {"type": "string"}, "day": {"enum": ["today", "monday"]}},
    "required": ["minutes"],
}
ASKED = GateCall("Set a timer of 12 minutes for the Pasta", {"set_timer": TIMER})
TOKENS = ("Sure", ".", "<tool_call>", '{"name": "', "set_", "timer", '", "arguments": {"minutes": ', "12", "}}")
MARGINS = (0.1, 0.2, 9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0)


def said(arguments: Any, name: str = "set_timer", **more: Any) -> GateAnswer:
    return GateAnswer([(name, arguments)], "Sure.", **{"tokens": TOKENS, "margins": MARGINS, **more})


def test_a_call_is_as_strong_as_its_least_certain_token() -> None:
    assert weigh(ASKED, said({"minutes": 12})) == Evidence("call", 3.0)  # what was said before the call is not counted


@pytest.mark.parametrize(
    ("answer", "doubt"),
    [
        (said(None), "unparsable"),
        (said({"minutes": 12}, "set_alarm"), "unknown tool"),
        (said({"minutes": "twelve"}), "not the schema"),
        (said({"label": "Pasta"}), "not the schema"),
        (said({"minutes": 12, "volume": 3}), "not the schema"),
        (said({"minutes": 12, "day": "friday"}), "not the schema"),
        (said({"minutes": 12}, is_cut=True), "cut off"),
        (said({"minutes": 12}, margins=()), "no margins"),
        (said({"minutes": 12}, tokens=(), margins=()), "no margins"),
    ],
)
def test_what_can_not_be_right_is_doubted(answer: GateAnswer, doubt: str) -> None:
    evidence = weigh(ASKED, answer)
    assert evidence.doubt == doubt
    trusting = Gate({"call": Isotonic([-inf, 0.0], [1.0, 1.0])})
    assert trusting.score(evidence) == 0.0


def test_words_that_nobody_said_are_another_kind() -> None:
    assert weigh(ASKED, said({"minutes": 12, "label": "pasta"})).kind == "call"
    assert weigh(ASKED, said({"minutes": 12, "label": "pizza"})).kind == "own words"
    assert weigh(ASKED, said({"minutes": 21})).kind == "own words"
    assert weigh(ASKED, said({"minutes": 12, "day": "today"})).kind == "call"  # listed by the schema
    assert is_grounded({"a": ["x", {"b": 2.0}], "c": True}, "X and 2", {})


def test_structured_answers_are_held_to_their_schema() -> None:
    asked = GateCall("How long?", schema=TIMER)
    tokens, margins = ('{"minutes"', ": 5}"), (2.0, 1.0)
    assert weigh(asked, GateAnswer([], "", {"minutes": 5}, tokens, margins)) == Evidence("structured", 1.0)
    assert weigh(asked, GateAnswer([], "", {"minutes": "x"}, tokens, margins)).doubt == "not the schema"
    assert weigh(asked, GateAnswer([], "no JSON", None, tokens, margins)).doubt == "unparsable"


def test_no_call_where_there_are_tools_is_a_kind_of_its_own() -> None:
    evidence = weigh(ASKED, GateAnswer([], "Which one?", None, ("Which", " one?"), (1.0, 2.0)))
    assert evidence == Evidence("no call", 1.0)
    assert Gate({"call": Isotonic([0.0], [1.0])}).score(evidence) == 0.0


@given(st.lists(st.tuples(st.floats(-5, 20), st.booleans()), max_size=60), st.floats(-10, 30), st.floats(0, 10))
def test_a_stronger_answer_never_has_the_lower_chance(
    seen: list[tuple[float, bool]], strength: float, more: float
) -> None:
    rising = Isotonic.fit(seen)
    low = rising.at(strength) if rising.strengths else 0.0
    high = rising.at(strength + more) if rising.strengths else 0.0
    assert 0.0 <= low <= high <= 1.0


def test_chances_are_what_was_seen() -> None:
    dice = random.Random(3)
    rows = [(strength, dice.random() < strength) for strength in [dice.random() for _ in range(5000)]]
    rising = Isotonic.fit(rows)
    for strength in (0.2, 0.4, 0.6, 0.8):
        assert rising.at(strength) == pytest.approx(strength, abs=0.08)


def test_prompts_are_told_apart_by_their_words() -> None:
    easy = [(f"say hello to {name}", True) for name in ("Ann", "Bob", "Cid", "Dan")]
    hard = [(f"prove the theorem of {name}", False) for name in ("Gauss", "Euler", "Abel", "Weil")]
    guess = PromptGuess.fit([*easy, *hard])
    assert guess.strength("say hello to Eve") > 0 > guess.strength("prove the theorem of Galois")
    seen = [Seen(words, Evidence("text"), not good) for words, good in [*easy, *hard]]
    gate = Gate.fit(seen)
    assert gate.score(gate.before(GateCall("say hello to Eve"))) > gate.score(
        gate.before(GateCall("prove the theorem"))
    )


def test_a_kind_that_was_never_seen_is_not_trusted() -> None:
    gate = Gate.fit([Seen("x", Evidence("call", float(number)), is_excess=False) for number in range(50)])
    assert gate.score(Evidence("call", 60.0)) == 1.0
    assert gate.score(Evidence("call", -1.0)) == 0.0  # weaker than all that was seen
    assert gate.score(Evidence("structured", 60.0)) == 0.0
    assert gate.score(gate.before(GateCall("free text"))) == 0.0

"""The gate of the auto tier: may a student's answer be taken, or is the full model asked instead?

    weigh()   what speaks for an answer that is here in full and that nobody has seen: can its calls be read, are they
              of tools that were offered, do they fit their schemas, are their words those of the request, and how sure
              was the student of the token it was least sure of
    Gate      turns that into the chance that the answer is no excess mistake (auto/risk.py), as it was on tasks with
              known answers

Free text can not be held back and still stream, so it is decided by the prompt alone, before the first token.

Knows no dialect and no model. What it can not weigh it does not trust: a score of 0 is always escalated. Pure.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, log
from typing import Any, Literal
from zlib import crc32

from headway.auto.risk import Judged
from headway.auto.schema import fits

Kind = Literal["call", "own words", "no call", "structured", "text"]
Doubt = Literal[
    "",
    "unparsable",  # no call and no JSON can be read from it
    "unknown tool",
    "not the schema",
    "cut off",  # it ended at its longest length
    "no margins",  # the engine did not say how sure it was
]

WORD = re.compile(r"\w+")
BUCKETS = 4096  # words of prompts are told apart by a hash of them
MAX_WORDS = 512  # of a prompt, from its end: the question is there


@dataclass(slots=True)
class Asked:
    """A call as the gate sees it."""

    words: str  # of all its messages
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the schema of each tool's arguments
    schema: Mapping[str, Any] | None = None  # that the answer shall fit; {}: any JSON

    @property
    def is_free_text(self) -> bool:
        return not self.tools and self.schema is None


@dataclass(slots=True)
class Said:
    """A student's answer, in full. `calls` are names and arguments, those None that could not be read."""

    calls: Sequence[tuple[str, Any]]
    text: str  # beside the calls
    value: Any = None  # the text as JSON, where that was asked for; None: it is none
    tokens: Sequence[str] = ()
    margins: Sequence[float] = ()  # of each token: its log-probability less that of the likeliest other
    is_cut: bool = False


@dataclass(slots=True)
class Evidence:
    kind: Kind
    strength: float = -inf  # comparable within a kind only
    doubt: Doubt = ""


def weigh(asked: Asked, said: Said) -> Evidence:
    """What speaks for an answer that is held back."""
    kind: Kind = "call" if said.calls else "structured" if asked.schema is not None else "no call"
    if said.is_cut:
        return Evidence(kind, doubt="cut off")
    if doubt := _doubt(asked, said):
        return Evidence(kind, doubt=doubt)
    counted = _margins_that_count(said)
    if not counted:
        return Evidence(kind, doubt="no margins")
    if not all(is_grounded(arguments, asked.words, asked.tools[name]) for name, arguments in said.calls):
        kind = "own words"
    return Evidence(kind, min(counted))


def _doubt(asked: Asked, said: Said) -> Doubt:
    if any(arguments is None for _, arguments in said.calls):
        return "unparsable"
    if any(name not in asked.tools for name, _ in said.calls):
        return "unknown tool"
    if not all(fits(arguments, asked.tools[name]) for name, arguments in said.calls):
        return "not the schema"
    if not said.calls and asked.schema is not None:
        return "unparsable" if said.value is None else "" if fits(said.value, asked.schema) else "not the schema"
    return ""


def _margins_that_count(said: Said) -> Sequence[float]:
    """From the name of the first call on: what is said before it does nothing."""
    if len(said.margins) != len(said.tokens):
        return ()
    if not said.calls:
        return said.margins
    start = "".join(said.tokens).find(said.calls[0][0])
    if start < 0:
        return said.margins
    length = 0
    for number, token in enumerate(said.tokens):
        length += len(token)
        if length > start:
            return said.margins[number:]
    return said.margins


def is_grounded(value: Any, words: str, schema: Any) -> bool:
    """Whether each word and number of a call stands in the request: a small model that mistakes one writes another.

    Those that the schema lists need not: who wants light may say "brighter", not `on`.
    """
    known = {word.lower() for word in WORD.findall(words)}
    return all(word.lower() in known for leaf in _free_values(value, schema) for word in WORD.findall(leaf))


def _free_values(value: Any, schema: Any) -> Iterable[str]:
    of = schema if isinstance(schema, Mapping) else {}
    if "enum" in of or "const" in of or isinstance(value, bool):
        return
    if isinstance(value, Mapping):
        properties = of.get("properties")
        for name, one in value.items():
            yield from _free_values(one, properties.get(name) if isinstance(properties, Mapping) else None)
    elif isinstance(value, list):
        for one in value:
            yield from _free_values(one, of.get("items"))
    elif isinstance(value, str):
        yield value
    elif isinstance(value, int | float):
        yield f"{value:g}"


# --- from evidence to a chance ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Rising:
    """Isotonic regression: the chance that rises with the strength and fits what was seen best.

    Between its steps it is drawn straight, so that of two answers the stronger has the higher score.
    """

    strengths: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def at(self, strength: float) -> float:
        place = bisect_right(self.strengths, strength)
        if place == 0:
            return 0.0  # weaker than all that was seen
        if place == len(self.strengths):
            return self.chances[-1]
        low, high = self.strengths[place - 1], self.strengths[place]
        part = (strength - low) / (high - low)
        return self.chances[place - 1] + part * (self.chances[place] - self.chances[place - 1])

    @staticmethod
    def fit(seen: Iterable[tuple[float, bool]]) -> Rising:
        """Neighbours that would fall are pooled until none does; each pool is a step at its mean strength."""
        pools: list[list[float]] = []  # how many, of them good, sum of strengths
        rows = sorted((strength, good) for strength, good in seen if strength > -inf)
        for strength, good in rows:
            pools.append([1.0, float(good), strength])
            while len(pools) > 1 and _chance(pools[-2]) >= _chance(pools[-1]):
                count, of, total = pools.pop()
                pools[-1] = [pools[-1][0] + count, pools[-1][1] + of, pools[-1][2] + total]
        if not pools:
            return Rising()
        strengths, chances = [rows[0][0]], [min(0.5, _careful(pools[0]))]
        for pool in pools:
            if (middle := pool[2] / pool[0]) > strengths[-1]:
                strengths.append(middle)
                chances.append(max(chances[-1], _careful(pool)))
        if rows[-1][0] > strengths[-1]:
            strengths.append(rows[-1][0])
            chances.append(1.0)
        return Rising(strengths, chances)


def _chance(pool: list[float]) -> float:
    return pool[1] / pool[0]


def _careful(pool: list[float]) -> float:
    """As if one more, half good, had been seen: few are no certainty."""
    return (pool[1] + 0.5) / (pool[0] + 1)


@dataclass(slots=True)
class PromptGuess:
    """How a prompt's words speak for the student: naive Bayes over a hash of each."""

    weights: dict[int, float] = field(default_factory=dict)

    def strength(self, words: str) -> float:
        return sum(self.weights.get(one, 0.0) for one in _buckets(words))

    @staticmethod
    def fit(seen: Sequence[tuple[str, bool]]) -> PromptGuess:
        counts: dict[int, list[int]] = {}
        totals = [0, 0]
        for words, good in seen:
            totals[good] += 1
            for one in _buckets(words):
                counts.setdefault(one, [0, 0])[good] += 1
        return PromptGuess(
            {
                one: log((good + 1) / (totals[1] + 2)) - log((bad + 1) / (totals[0] + 2))
                for one, (bad, good) in counts.items()
            }
        )


def _buckets(words: str) -> set[int]:
    return {crc32(word.lower().encode()) % BUCKETS for word in WORD.findall(words)[-MAX_WORDS:]}


@dataclass(slots=True)
class Seen:
    """A task of known answer that both models were asked: what the gate is fitted on."""

    words: str
    evidence: Evidence
    is_excess: bool


@dataclass(slots=True)
class Gate:
    """What was learnt about one student beside its full model. A kind of answer that was never seen is not trusted."""

    rising: dict[Kind, Rising] = field(default_factory=dict)
    prompts: PromptGuess = field(default_factory=PromptGuess)

    def score(self, evidence: Evidence) -> float:
        """The chance that the answer is no excess mistake; 0 where there is a doubt."""
        if evidence.doubt or evidence.kind not in self.rising:
            return 0.0
        return self.rising[evidence.kind].at(evidence.strength)

    def takes(self, evidence: Evidence, level: float) -> bool:
        """Even where a budget would allow for everything, a doubt is one."""
        score = self.score(evidence)
        return score > 0 and score >= level

    def before(self, asked: Asked) -> Evidence:
        """What speaks for the student before it has said anything."""
        return Evidence("text", self.prompts.strength(asked.words))

    @staticmethod
    def fit(seen: Sequence[Seen]) -> Gate:
        prompts = PromptGuess.fit([(one.words, not one.is_excess) for one in seen if one.evidence.kind == "text"])
        by_kind: dict[Kind, list[tuple[float, bool]]] = {}
        for one in seen:
            if one.evidence.kind == "text":
                strength = prompts.strength(one.words)
            elif one.evidence.doubt:
                continue
            else:
                strength = one.evidence.strength
            by_kind.setdefault(one.evidence.kind, []).append((strength, not one.is_excess))
        return Gate({kind: Rising.fit(rows) for kind, rows in by_kind.items()}, prompts)


@dataclass(slots=True)
class GateCalibration:
    """What a run over tasks of known answer taught: the gate from one half of them, the budgets from the other."""

    student: str
    full: str
    made: str  # the day
    gate: Gate
    judged: list[Judged]
    used: list[str] = field(default_factory=list)  # names of the tasks

    def as_plain(self) -> dict[str, Any]:
        """For a file of JSON."""
        return {
            "student": self.student,
            "full": self.full,
            "made": self.made,
            "rising": {kind: [one.strengths, one.chances] for kind, one in self.gate.rising.items()},
            "prompts": list(self.gate.prompts.weights.items()),
            "judged": [[one.score, one.is_excess, one.differs] for one in self.judged],
            "used": self.used,
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> GateCalibration:
        """KeyError, TypeError or ValueError where it is none."""
        rising = {kind: Rising(list(of[0]), list(of[1])) for kind, of in plain["rising"].items()}
        prompts = PromptGuess({int(one): float(weight) for one, weight in plain["prompts"]})
        judged = [Judged(float(score), bool(excess), bool(differs)) for score, excess, differs in plain["judged"]]
        names = [str(plain[name]) for name in ("student", "full", "made")]
        return GateCalibration(names[0], names[1], names[2], Gate(rising, prompts), judged, list(plain["used"]))


def differ(one: Said, other: Said) -> bool:
    """Whether two answers to the same call would have different things done."""
    if one.calls or other.calls:
        return sorted(map(repr, one.calls)) != sorted(map(repr, other.calls))
    return bool(one.value != other.value)  # words around a call, or in place of one, do nothing

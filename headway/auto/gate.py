"""The gate of the auto tier: decides whether a student's answer is used or the full model is asked instead.

    weigh()   collects the evidence for a complete answer that the client has not seen yet: whether its tool calls can
              be parsed, name offered tools, fit their schemas and use the words of the request; and how sure the
              student was of its least certain token
    Gate      turns the evidence into the probability that the answer is not an excess mistake (auto/risk.py), fitted on
              tasks with known answers

Free text cannot be both held back and streamed, so the gate decides on the prompt alone, before the first token.

Knows no dialect and no model. An answer that it cannot weigh gets a score of 0, which is always escalated. Pure.
"""

from __future__ import annotations

import hashlib
import json
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
    "unparsable",  # the tool call or the JSON cannot be parsed
    "unknown tool",
    "not the schema",
    "cut off",  # it reached its length limit
    "no margins",  # the engine sent no log-probabilities
]

WORD = re.compile(r"\w+")
BUCKETS = 4096  # the words of prompts are hashed into this many buckets
MAX_WORDS = 512  # only the last words of a prompt count, because the question is at its end


@dataclass(slots=True)
class GateCall:
    """A call as the gate sees it."""

    words: str  # text of all its messages
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # the schema of each tool's arguments
    schema: Mapping[str, Any] | None = None  # schema that the answer must fit; {} for any JSON
    temperature: float = 0.0

    @property
    def is_free_text(self) -> bool:
        return not self.tools and self.schema is None


@dataclass(slots=True)
class GateAnswer:
    """A complete answer as the gate sees it. `tool_calls` are (name, arguments); arguments are None if they are not
    valid JSON."""

    tool_calls: Sequence[tuple[str, Any]]
    text: str  # without the tool calls
    value: Any = None  # the text parsed as JSON, if JSON was asked for; None if the text is not valid JSON
    tokens: Sequence[str] = ()
    margins: Sequence[float] = ()  # for each token: its log-probability minus that of the most likely other token
    is_cut: bool = False


@dataclass(slots=True)
class Evidence:
    kind: Kind
    strength: float = -inf  # comparable only within a kind
    doubt: Doubt = ""


def weigh(call: GateCall, answer: GateAnswer) -> Evidence:
    """The evidence for an answer that is held back."""
    kind: Kind = "call" if answer.tool_calls else "structured" if call.schema is not None else "no call"
    if answer.is_cut:
        return Evidence(kind, doubt="cut off")
    if doubt := _doubt(call, answer):
        return Evidence(kind, doubt=doubt)
    counted = _margins_that_count(answer)
    if not counted:
        return Evidence(kind, doubt="no margins")
    if not all(is_grounded(arguments, call.words, call.tools[name]) for name, arguments in answer.tool_calls):
        kind = "own words"
    return Evidence(kind, min(counted))


def _doubt(call: GateCall, answer: GateAnswer) -> Doubt:
    if any(arguments is None for _, arguments in answer.tool_calls):
        return "unparsable"
    if any(name not in call.tools for name, _ in answer.tool_calls):
        return "unknown tool"
    if not all(fits(arguments, call.tools[name]) for name, arguments in answer.tool_calls):
        return "not the schema"
    if not answer.tool_calls and call.schema is not None:
        return "unparsable" if answer.value is None else "" if fits(answer.value, call.schema) else "not the schema"
    return ""


def _margins_that_count(answer: GateAnswer) -> Sequence[float]:
    """The margins from the name of the first tool call on. The text before it has no effect."""
    if len(answer.margins) != len(answer.tokens):
        return ()
    if not answer.tool_calls:
        return answer.margins
    start = "".join(answer.tokens).find(answer.tool_calls[0][0])
    if start < 0:
        return answer.margins
    length = 0
    for number, token in enumerate(answer.tokens):
        length += len(token)
        if length > start:
            return answer.margins[number:]
    return answer.margins


def is_grounded(value: Any, words: str, schema: Any) -> bool:
    """Whether each word and number in a tool call also occurs in the request. A small model's typical mistake is to
    write a different one.

    Values that the schema lists (`enum`, `const`) need not occur: a user who says "brighter" may mean `on`.
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


# --- from evidence to a score ----------------------------------------------------------------------------------------


@dataclass(slots=True)
class Isotonic:
    """Isotonic regression: the best fit to the examples among all functions that never fall with the strength.

    Interpolated linearly between its steps, so that of two answers the stronger one has the higher score.
    """

    strengths: list[float] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)

    def at(self, strength: float) -> float:
        place = bisect_right(self.strengths, strength)
        if place == 0:
            return 0.0  # weaker than every example
        if place == len(self.strengths):
            return self.chances[-1]
        low, high = self.strengths[place - 1], self.strengths[place]
        part = (strength - low) / (high - low)
        return self.chances[place - 1] + part * (self.chances[place] - self.chances[place - 1])

    @staticmethod
    def fit(seen: Iterable[tuple[float, bool]]) -> Isotonic:
        """Merges neighbours into pools until no chance falls. Each pool is a step at its mean strength."""
        pools: list[list[float]] = []  # [number of examples, number of good ones, sum of strengths]
        rows = sorted((strength, good) for strength, good in seen if strength > -inf)
        for strength, good in rows:
            pools.append([1.0, float(good), strength])
            while len(pools) > 1 and _chance(pools[-2]) >= _chance(pools[-1]):
                count, of, total = pools.pop()
                pools[-1] = [pools[-1][0] + count, pools[-1][1] + of, pools[-1][2] + total]
        if not pools:
            return Isotonic()
        strengths, chances = [rows[0][0]], [min(0.5, _smoothed(pools[0]))]
        for pool in pools:
            if (middle := pool[2] / pool[0]) > strengths[-1]:
                strengths.append(middle)
                chances.append(max(chances[-1], _smoothed(pool)))
        if rows[-1][0] > strengths[-1]:
            strengths.append(rows[-1][0])
            chances.append(1.0)
        return Isotonic(strengths, chances)


def _chance(pool: list[float]) -> float:
    return pool[1] / pool[0]


def _smoothed(pool: list[float]) -> float:
    """The chance with one more, half good example added, so that few examples give no certainty."""
    return (pool[1] + 0.5) / (pool[0] + 1)


@dataclass(slots=True)
class PromptGuess:
    """Predicts from a prompt's words whether the student's answer will be good: naive Bayes over hashed words."""

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
    """A task with a known answer that both models were asked. The gate is fitted on these."""

    words: str
    evidence: Evidence
    is_excess: bool


@dataclass(slots=True)
class Gate:
    """The fit for one student and its full model. A kind of answer without examples is not trusted."""

    rising: dict[Kind, Isotonic] = field(default_factory=dict)
    prompts: PromptGuess = field(default_factory=PromptGuess)

    def score(self, evidence: Evidence) -> float:
        """The probability that the answer is not an excess mistake; 0 if there is a doubt."""
        if evidence.doubt or evidence.kind not in self.rising:
            return 0.0
        return self.rising[evidence.kind].at(evidence.strength)

    def takes(self, evidence: Evidence, level: float) -> bool:
        """Whether an answer is used. An answer with a doubt never is, even if the budget allows any score."""
        score = self.score(evidence)
        return score > 0 and score >= level

    def before(self, call: GateCall) -> Evidence:
        """The evidence for the student before it has answered."""
        return Evidence("text", self.prompts.strength(call.words))

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
        return Gate({kind: Isotonic.fit(rows) for kind, rows in by_kind.items()}, prompts)


@dataclass(slots=True)
class GateCalibration:
    """The result of a calibration: the gate, fitted on one half of the tasks, and the other half, judged."""

    student: str
    full: str
    made: str  # date
    gate: Gate
    judged: list[Judged]
    used: list[str] = field(default_factory=list)  # names of the tasks
    temperatures: list[float] = field(default_factory=lambda: [0.0])  # at which the tasks were asked
    tools: list[str] = field(default_factory=list)  # ids of the tools that the tasks offered

    def covers(self, call: GateCall) -> bool:
        """Whether the calibration says anything about such a call."""
        is_between = min(self.temperatures) <= call.temperature <= max(self.temperatures)
        return is_between and all(tool_id(name, schema) in self.tools for name, schema in call.tools.items())

    def as_plain(self) -> dict[str, Any]:
        """The calibration as JSON values, for a file."""
        return {
            "student": self.student,
            "full": self.full,
            "made": self.made,
            "rising": {kind: [one.strengths, one.chances] for kind, one in self.gate.rising.items()},
            "prompts": list(self.gate.prompts.weights.items()),
            "judged": [[one.score, one.is_excess, one.differs, one.temperature] for one in self.judged],
            "used": self.used,
            "temperatures": self.temperatures,
            "tools": self.tools,
        }

    @staticmethod
    def from_plain(plain: Mapping[str, Any]) -> GateCalibration:
        """Raises KeyError, TypeError or ValueError if `plain` is not a calibration."""
        rising = {kind: Isotonic(list(of[0]), list(of[1])) for kind, of in plain["rising"].items()}
        prompts = PromptGuess({int(one): float(weight) for one, weight in plain["prompts"]})
        judged = [Judged(float(one), bool(two), bool(three), float(four)) for one, two, three, four in plain["judged"]]
        names = [str(plain[name]) for name in ("student", "full", "made")]
        asked = [float(one) for one in plain["temperatures"]], [str(one) for one in plain["tools"]]
        gate = Gate(rising, prompts)
        return GateCalibration(names[0], names[1], names[2], gate, judged, list(plain["used"]), *asked)


def tool_id(name: str, schema: Any) -> str:
    """The same for the same tool: its name and the schema of its arguments, whatever its description says."""
    return hashlib.sha256(json.dumps([name, schema], sort_keys=True).encode()).hexdigest()[:16]


def differ(one: GateAnswer, other: GateAnswer) -> bool:
    """Whether two answers to the same call have different effects."""
    if one.tool_calls or other.tool_calls:
        return sorted(map(repr, one.tool_calls)) != sorted(map(repr, other.tool_calls))
    return bool(one.value != other.value)  # text has no effect, with or without a tool call

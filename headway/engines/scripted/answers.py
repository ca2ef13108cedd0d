"""Programmed answers of the scripted engine: a TOML file that says which request gets which answer.

Knows the file's fields, which requests a rule answers, and the tokens of every answer. Does not know how a token is
encoded (programmed.py) or when it is due (steps.py).
Invariant: the first rule whose `when` holds and whose `times` are not used up answers a request. If there is none, the
answer is the words that the engine gives without a file.
"""

import json
import re
import tomllib
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import msgspec

from headway.engines.scripted.formats import WORDS, Ask, WireError, list_stops
from headway.errors import SetupError

MAX_ANSWERS_BYTES = 2**20
WORD = re.compile(r"\s*\S+|\s+")
# Cuts JSON about where a tokenizer does: inside strings, and between a backslash and its letter.
JSON_PIECE = re.compile(r"\w+|\W+")

Dialect = Literal["chat", "completions", "messages", "responses"]
ToolChoice = Literal["auto", "required", "named"]


class RuleCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which requests a rule answers: those for which all of these fields hold."""

    dialect: Dialect | None = None
    user_contains: str | None = None  # in the last message of the user that is not a tool result, or in the prompt
    offers_tool: str | None = None
    tool_results: Annotated[int, msgspec.Meta(ge=0)] | None = None  # exactly so many in the whole history


class ProgrammedCall(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    name: str
    arguments: dict[str, Any] = {}

    def __post_init__(self) -> None:
        _check_json(self.arguments)

    def encoded(self) -> str:
        return json.dumps(self.arguments, ensure_ascii=False)


class ProgrammedError(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An error response: in the words of the dialect with `message`, or any JSON object with `body`."""

    status: Annotated[int, msgspec.Meta(ge=400, le=599)]
    message: str | None = None
    type: str | None = None
    body: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if (self.message is None) == (self.body is None) or (self.type is not None and self.body is not None):
            raise ValueError("an error needs `message`, with or without `type`, or `body`, and not both")
        _check_json(self.body)


class ProgrammedChoice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    text: str | None = None
    reasoning: str | None = None
    tool_calls: list[ProgrammedCall] = []
    finish_reason: Literal["stop", "length", "tool_calls"] | None = None  # None: as vLLM would

    def __post_init__(self) -> None:
        if not self.says_something():
            raise ValueError("a choice needs `text`, `reasoning` or `tool_calls`")

    def says_something(self) -> bool:
        return self.text is not None or self.reasoning is not None or bool(self.tool_calls)


class AnswerRule(ProgrammedChoice, frozen=True, forbid_unknown_fields=True):
    when: RuleCondition = RuleCondition()
    times: Annotated[int, msgspec.Meta(ge=1)] | None = None  # None: any number of requests
    choices: list[ProgrammedChoice] = []
    error: ProgrammedError | None = None

    def __post_init__(self) -> None:
        if [self.says_something(), bool(self.choices), self.error is not None].count(True) != 1:
            raise ValueError("an answer needs `choices`, `error`, or one of `text`, `reasoning`, `tool_calls`")
        if self.finish_reason is not None and not self.says_something():
            raise ValueError("`finish_reason` belongs to the choice that it ends")

    def all_choices(self) -> list[ProgrammedChoice]:
        return self.choices or [self]


class AnswersFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    answers: Annotated[list[AnswerRule], msgspec.Meta(min_length=1)]


class Piece(NamedTuple):
    """One token of an answer."""

    kind: Literal["reasoning", "text", "call", "arguments", "end"]
    text: str = ""  # of a call: the name of its tool
    call: int = 0  # which of the choice's calls


@dataclass(frozen=True, slots=True)
class ChoicePlan:
    """The tokens of one choice. The last of them carries the finish reason."""

    pieces: tuple[Piece, ...]
    finish_reason: str
    stop: str | None  # the stop string that ends it
    tool_choice: ToolChoice  # of the request
    logprobs: bool = False  # wanted by the request; only whole chat answers have them

    def text_of(self, kind: str) -> str:
        return "".join(piece.text for piece in self.pieces if piece.kind == kind)

    def calls(self) -> list[tuple[str, str]]:
        """Name and arguments of each call. A call that the token limit cut is left out, because no parser reads it."""
        found: list[tuple[str, str]] = []
        for piece in self.pieces:
            if piece.kind == "call":
                found.append((piece.text, ""))
            elif piece.kind == "arguments":
                found[-1] = (found[-1][0], found[-1][1] + piece.text)
        return [call for call in found if _is_json(call[1])]

    def count_reasoning(self) -> int:
        """The number of reasoning tokens, which are the first of a choice."""
        return sum(piece.kind == "reasoning" for piece in self.pieces)


class AskedConversation(msgspec.Struct):
    """The fields of a request that only programmed answers look at, in any dialect."""

    messages: list[dict[str, Any]] = []
    prompt: Any = ""
    tools: Any = None
    tool_choice: Any = None
    parallel_tool_calls: Any = None
    logprobs: Any = None  # a number in completions
    input: Any = None  # of /v1/responses

    def __post_init__(self) -> None:
        if self.input is not None:
            self.messages = _messages_of(self.input)

    def last_user_text(self) -> str:
        for message in reversed(self.messages):
            content = message.get("content")
            if message.get("role") != "user" or any(part.get("type") == "tool_result" for part in _parts(content)):
                continue
            return content if isinstance(content, str) else "\n".join(_texts(_parts(content)))
        prompts = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        return "\n".join(one for one in prompts if isinstance(one, str))

    def count_tool_results(self) -> int:
        of_chat = [message for message in self.messages if message.get("role") == "tool"]
        parts = [part for message in self.messages for part in _parts(message.get("content"))]
        return len(of_chat) + len([part for part in parts if part.get("type") == "tool_result"])

    def offered_tools(self) -> set[str]:
        tools = [tool for tool in self.tools if isinstance(tool, dict)] if isinstance(self.tools, list) else []
        functions = [tool.get("function", tool) for tool in tools if tool.get("type") != "namespace"]
        names = [function.get("name") for function in functions if isinstance(function, dict)]
        for space in (tool for tool in tools if tool.get("type") == "namespace"):
            names += [f"{space.get('name')}__{member.get('name')}" for member in _parts(space.get("tools"))]
        return {name for name in names if isinstance(name, str)}

    def read_tool_choice(self) -> ToolChoice:
        chosen = self.tool_choice.get("type") if isinstance(self.tool_choice, dict) else self.tool_choice
        if chosen in ("function", "tool", "custom"):
            return "named"
        return "required" if chosen in ("required", "any") else "auto"

    def allows_several_calls(self) -> bool:
        one_call = isinstance(self.tool_choice, dict) and self.tool_choice.get("disable_parallel_tool_use") is True
        return not one_call and self.parallel_tool_calls is not False


_ASKED = msgspec.json.Decoder(AskedConversation)


class ErrorAsWritten(WireError):
    """An error with the body that the file gives, which is the same in every dialect."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status, "", "")
        self._body = msgspec.json.encode(body)

    def openai(self) -> bytes:
        return self._body

    def anthropic(self) -> bytes:
        return self._body


class ProgrammedAnswers:
    """The rules of a file, and how often each has answered."""

    def __init__(self, rules: list[AnswerRule]) -> None:
        self._rules = rules
        self._used = [0] * len(rules)
        choices = [choice for rule in rules for choice in rule.all_choices()]
        # With a reasoning parser vLLM counts reasoning tokens in every chat answer, and Headway looks for that.
        self.has_reasoning = any(choice.reasoning is not None for choice in choices)

    def plan(self, dialect: Dialect, body: bytes, ask: Ask, max_tokens: int, room: int) -> list[ChoicePlan]:
        """The choices of the answer to a request. `max_tokens` is the limit of the answer, and `room` is what the
        context has left, which limits the answer if the request has no limit. Raises WireError if the answer is one."""
        asked = _ASKED.decode(body)  # cannot fail where `Ask` was read from the same body
        rule = self._find(dialect, asked)
        if rule is not None and rule.error is not None:
            raise _error(rule.error)
        count = 1 if dialect in ("messages", "responses") else ask.n or 1
        if rule is None:
            words = "".join(WORDS[number % len(WORDS)] for number in range(max_tokens))
            choices = [ProgrammedChoice(text=words, finish_reason="length")]
        else:
            choices = rule.all_choices()
            limits = (ask.max_tokens, ask.max_completion_tokens, ask.max_output_tokens)
            max_tokens = room if limits == (None, None, None) else max_tokens
        return [_plan(choices[index % len(choices)], asked, list_stops(ask), max_tokens) for index in range(count)]

    def _find(self, dialect: Dialect, asked: AskedConversation) -> AnswerRule | None:
        user_text, results, tools = asked.last_user_text(), asked.count_tool_results(), asked.offered_tools()
        for number, rule in enumerate(self._rules):
            when = rule.when
            if (
                when.dialect in (None, dialect)
                and (when.user_contains is None or when.user_contains in user_text)
                and (when.offers_tool is None or when.offers_tool in tools)
                and when.tool_results in (None, results)
                and (rule.times is None or self._used[number] < rule.times)
                and (dialect != "completions" or all(_is_plain(choice) for choice in rule.all_choices()))
            ):
                self._used[number] += 1
                return rule
        return None


def read_answers(path: Path) -> ProgrammedAnswers:
    """Read and check a file of answers. Raises SetupError, which says what to change."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_ANSWERS_BYTES + 1)
    except OSError as error:
        reason = error.strerror or error
        raise SetupError(f"{path}: {reason}. Create the file, or choose another with --answers.") from error
    if len(content) > MAX_ANSWERS_BYTES:
        raise SetupError(f"{path}: larger than {MAX_ANSWERS_BYTES} bytes. Use one file for each test.")
    try:
        return ProgrammedAnswers(msgspec.convert(tomllib.loads(content.decode()), AnswersFile).answers)
    except msgspec.ValidationError as error:
        known = {
            "[[answers]]": AnswerRule,
            "when": RuleCondition,
            "choices": ProgrammedChoice,
            "tool_calls": ProgrammedCall,
            "error": ProgrammedError,
        }
        lines = [f"  {name}: {', '.join(table.__struct_fields__)}" for name, table in known.items()]
        raise SetupError("\n".join([f"{path}: {error}. The fields are", *lines])) from error
    except (ValueError, RecursionError) as error:  # not UTF-8, not TOML, or nested too deeply
        raise SetupError(f"{path}: not valid TOML: {error}") from error


def _plan(choice: ProgrammedChoice, asked: AskedConversation, stops: list[str], max_tokens: int) -> ChoicePlan:
    text, calls = choice.text or "", choice.tool_calls if asked.allows_several_calls() else choice.tool_calls[:1]
    stop = min((one for one in stops if one and one in text), key=text.index, default=None)
    if stop is not None:
        text, calls = text[: text.index(stop)], []
    pieces = [Piece("reasoning", word) for word in WORD.findall(choice.reasoning or "")]
    pieces += [Piece("text", word) for word in WORD.findall(text)]
    for number, call in enumerate(calls):
        pieces.append(Piece("call", call.name, number))
        pieces += [Piece("arguments", part, number) for part in JSON_PIECE.findall(call.encoded())]
    tool_choice = asked.read_tool_choice()
    finish_reason = choice.finish_reason
    if stop is not None:
        finish_reason = "stop"
    elif finish_reason is None:  # as in vLLM, a call of the tool that the request names ends with `stop`
        finish_reason = "tool_calls" if calls and tool_choice != "named" else "stop"
    if stop is not None and len(text) > 1:
        # vLLM holds back what may be the beginning of a stop string, so the last event may still have text.
        last = pieces.pop().text
        pieces += [Piece("text", part) for part in (last[:-1], last[-1]) if part]
    elif finish_reason != "length" or not pieces:
        pieces.append(Piece("end"))  # the end-of-text token: counted and not sent
    if len(pieces) > max_tokens:
        pieces, finish_reason, stop = pieces[:max_tokens], "length", None
    return ChoicePlan(tuple(pieces), finish_reason, stop, tool_choice, asked.logprobs is True)


def _error(error: ProgrammedError) -> WireError:
    if error.body is not None:
        return ErrorAsWritten(error.status, error.body)
    known = {status.value: status.phrase for status in HTTPStatus}
    return WireError(error.status, error.type or known.get(error.status, "Error"), error.message or "")


def _is_plain(choice: ProgrammedChoice) -> bool:
    return choice.reasoning is None and not choice.tool_calls


def _messages_of(asked: Any) -> list[dict[str, Any]]:
    """`input` as the messages of a chat, as far as programmed answers look at them."""
    if isinstance(asked, str):
        return [{"role": "user", "content": asked}]
    found: list[dict[str, Any]] = []
    for item in asked if isinstance(asked, list) else ():
        kind = item.get("type", "message") if isinstance(item, dict) else None
        if kind == "message":
            found.append(item)
        elif kind in ("function_call_output", "custom_tool_call_output"):
            found.append({"role": "tool", "content": item.get("output")})
        elif kind is not None:
            found.append({"role": "assistant", "content": None})
    return found


def _parts(content: Any) -> list[dict[str, Any]]:
    return [part for part in content if isinstance(part, dict)] if isinstance(content, list) else []


def _texts(parts: list[dict[str, Any]]) -> list[str]:
    return [part["text"] for part in parts if isinstance(part.get("text"), str)]


def _check_json(value: Any) -> None:
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:  # a date, or a number that JSON does not have
        raise ValueError(f"JSON has no such value: {error}. Write it as a string") from None


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True

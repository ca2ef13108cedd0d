"""Measures what an engine would compile for one request: JSON schemas, regular expressions and lists of choices.

Engines compile these into automata, whose size has little to do with the length of the text. The size of a grammar is
the number of its nodes, each multiplied by the repeats around it: `(a{1,1000}b){1,1000}` has two million. All grammars
of a request share one limit. What is no grammar is not measured as one: the keywords of a schema count only where a
schema is expected, not in `default` or `enum`, and the schemas of tools that are only shown to the model are text.

The work of measuring is bounded by the same limits. Nothing here recurses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

import msgspec

from headway.errors import InvalidRequest

MAX_SCHEMA_BYTES = 64 * 1024
MAX_SCHEMA_DEPTH = 24
MAX_REPEAT = 1_000
MAX_REGEX_CHARS = 1_000
MAX_REGEX_DEPTH = 24
# Of all schemas of a request:
MAX_SCHEMAS_BYTES = 2**20
MAX_SCHEMAS_NODES = 20_000
# Of all its grammars: nodes as they are written, with references followed, and nodes times the repeats around them.
MAX_GRAMMAR_NODES = 5_000
MAX_GRAMMAR_SIZE = 20_000

ONE_SCHEMA = ("not", "if", "then", "else")
REPEATED_ITEMS = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")
REPEATED_PROPERTIES = ("additionalProperties", "propertyNames", "unevaluatedProperties")
SCHEMA_LISTS = ("anyOf", "oneOf", "allOf")
NAMED_SCHEMAS = ("properties", "dependentSchemas")
LENGTHS = ("minLength", "maxLength")
ITEMS = ("minItems", "maxItems", "minContains", "maxContains")
PROPERTIES = ("minProperties", "maxProperties")
REPEATS = frozenset(LENGTHS + ITEMS + PROPERTIES)

# One token of a regular expression. What engines read differently is read here as the form that costs more.
REGEX_TOKEN = re.compile(
    r"(?P<zero_width>[\^$]|\\[bBAZz])"
    r"|(?P<atom>\\[pP]\{\^?[A-Za-z_]+\}|\\.|\[\^?(?:\\.|[^\]\\])*+\]?)"
    r"|(?P<open>\((?:\?(?:P?<\w+>|<?[=!]|[a-zA-Z-]*:))?)"
    r"|(?P<close>\))"
    r"|(?P<or>\|)"
    r"|(?P<repeat>[*+?]|\{(?P<low>\d*)(?P<comma>,?)(?P<high>\d*)\})"
    r"|(?P<literal>.)",
    re.DOTALL,
)


class Grammars:
    """The grammars of one request."""

    def __init__(self) -> None:
        self.size = 0
        self._grammar_nodes = 0
        self._bytes = 0
        self._nodes = 0

    def add_schema(self, raw: msgspec.Raw, param: str, *, is_compiled: bool) -> None:
        """A schema that is compiled, or one that is only part of the prompt."""
        size = memoryview(raw).nbytes
        self._bytes += size
        if size > MAX_SCHEMA_BYTES:
            raise InvalidRequest(f"A schema in `{param}` is larger than {MAX_SCHEMA_BYTES} bytes.", param)
        if self._bytes > MAX_SCHEMAS_BYTES:
            raise InvalidRequest(f"The schemas are larger than {MAX_SCHEMAS_BYTES} bytes in all.", param)
        root = _decode(raw, param)
        if is_compiled and isinstance(root, str):  # vLLM takes a schema as text, too
            root = _decode(root, param)
        self._check_shape(root, param)
        if is_compiled:
            self._measure(root, param)

    def add_regex(self, pattern: str, param: str, times: int = 1) -> None:
        if len(pattern) > MAX_REGEX_CHARS:
            raise InvalidRequest(
                f"A regular expression in `{param}` is longer than {MAX_REGEX_CHARS} characters.", param
            )
        size, nodes = regex_size(pattern, param)
        self._add(times * size, param, nodes)

    def add_choices(self, choices: Iterable[str], param: str) -> None:
        self._add(sum(len(choice) for choice in choices), param)

    def _add(self, size: int, param: str, nodes: int = 0) -> None:
        self.size += size
        self._grammar_nodes += nodes
        if self.size > MAX_GRAMMAR_SIZE or self._grammar_nodes > MAX_GRAMMAR_NODES:
            raise InvalidRequest(
                f"`{param}` is too complex: the schemas and expressions that an engine compiles for a request may have "
                f"at most {MAX_GRAMMAR_NODES} nodes, and {MAX_GRAMMAR_SIZE} if each counts as often as it is repeated.",
                param,
            )

    def _check_shape(self, root: object, param: str) -> None:
        level = [root]
        for _ in range(MAX_SCHEMA_DEPTH):
            self._nodes += len(level)
            if self._nodes > MAX_SCHEMAS_NODES:
                raise InvalidRequest(f"The schemas have more than {MAX_SCHEMAS_NODES} nodes in all.", param)
            level = [
                child
                for node in level
                if isinstance(node, dict | list)
                for child in (node.values() if isinstance(node, dict) else node)
            ]
            if not level:
                return
        raise InvalidRequest(f"`{param}` is nested more than {MAX_SCHEMA_DEPTH} levels deep.", param)

    def _measure(self, root: object, param: str) -> None:
        todo = [_Node(root)]
        while todo:
            node = todo.pop()
            self._add(node.times, param, 1)
            if isinstance(node.schema, dict):
                todo += self._measure_node(node, node.schema, root, param)

    def _measure_node(self, node: _Node, schema: dict[str, Any], root: object, param: str) -> list[_Node]:
        """Count the node's own repeats and texts. Returns the schemas in it."""
        times = times_items = times_properties = node.times
        if not REPEATS.isdisjoint(schema):
            items, properties = _repeats(schema, ITEMS, param), _repeats(schema, PROPERTIES, param)
            self._add(times * (_repeats(schema, LENGTHS, param) + items + properties), param)
            times_items, times_properties = times * max(1, items), times * max(1, properties)
        inside: list[_Node] = []
        for keyword, value in schema.items():
            if keyword in NAMED_SCHEMAS and isinstance(value, dict):
                self._add(times * sum(map(len, value)), param)
                inside += [node.consumed(one, times) for one in value.values()]
            elif keyword in REPEATED_ITEMS:
                many = value if isinstance(value, list) else [value]
                inside += [node.consumed(one, times_items) for one in many]
            elif keyword in SCHEMA_LISTS and isinstance(value, list):
                inside += [node.beside(one) for one in value]
            elif keyword in ONE_SCHEMA:
                inside.append(node.beside(value))
            elif keyword in REPEATED_PROPERTIES:
                inside.append(node.consumed(value, times_properties))
            elif keyword == "patternProperties" and isinstance(value, dict):
                for pattern in value:
                    self.add_regex(pattern, param, times_properties)
                inside += [node.consumed(one, times_properties) for one in value.values()]
            elif keyword == "pattern" and isinstance(value, str):
                self.add_regex(value, param, times)
            elif keyword in ("enum", "const"):
                self._add(times * len(msgspec.json.encode(value)), param)
            elif keyword == "$ref" and isinstance(value, str):
                inside += node.referred(value, root, param)
        return inside


@dataclass(slots=True)
class _Node:
    """A schema inside another one, `times` times. A reference to one that it is inside of (`within`) is a recursion,
    which engines compile once; one that comes back without anything in between (`chain`) would never end."""

    schema: object
    times: int = 1
    within: frozenset[str] = frozenset("#")
    chain: frozenset[str] = frozenset("#")

    def consumed(self, schema: object, times: int) -> _Node:
        return _Node(schema, times, self.within, frozenset())

    def beside(self, schema: object) -> _Node:
        return _Node(schema, self.times, self.within, self.chain)

    def referred(self, reference: str, root: object, param: str) -> list[_Node]:
        if reference in self.chain:
            raise InvalidRequest(f"A `$ref` in `{param}` refers to itself.", param)
        if reference in self.within:
            return []
        target = _resolve(root, reference, param)
        return [_Node(target, self.times, self.within | {reference}, self.chain | {reference})]


def _decode(text: msgspec.Raw | str, param: str) -> object:
    try:
        return msgspec.json.decode(text)
    except RecursionError:
        raise InvalidRequest(f"`{param}` is nested too deeply.", param) from None
    except msgspec.DecodeError as error:
        raise InvalidRequest(f"A schema in `{param}` is not valid JSON: {error}", param) from None


def _repeats(schema: dict[str, Any], keywords: Iterable[str], param: str) -> int:
    """The largest of these keywords; 0 if there is none."""
    most = 0
    for keyword in keywords:
        value = schema.get(keyword)
        if isinstance(value, int | float):
            if value > MAX_REPEAT:
                raise InvalidRequest(f"`{keyword}` in `{param}` may be at most {MAX_REPEAT}.", param)
            most = max(most, int(value))
    return most


def _resolve(root: object, reference: str, param: str) -> object:
    if not reference.startswith("#"):
        raise InvalidRequest(f"`{param}` may refer only to itself (`$ref` must start with #).", param)
    node = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = unquote(part).replace("~1", "/").replace("~0", "~")
        if isinstance(node, list) and name.isdecimal() and len(name) < 6 and int(name) < len(node):
            node = node[int(name)]
        elif isinstance(node, dict) and name in node:
            node = node[name]
        else:
            raise InvalidRequest(f"`{param}` has a `$ref` to what is not there: {reference[:100]}.", param)
    return node


@dataclass(slots=True)
class _Part:
    """Part of a regular expression. It is `loose` if it can be one repeat without an end and nothing else, and `solid`
    if it has something that is there once at least; `a+b` is not loose, because the `b` says where a repeat ends."""

    size: int = 0
    loose: bool = False
    solid: bool = False
    is_repeated: bool = False


@dataclass(slots=True)
class _Group:
    size: int = 0  # of what is finished
    loose: bool = False  # a branch that is finished
    solid: bool = True  # all branches that are finished
    branch: _Part = field(default_factory=_Part)
    last: _Part = field(default_factory=_Part)

    def put(self, part: _Part) -> None:
        branch, last = self.branch, self.last
        self.size += last.size
        branch.loose, branch.solid = branch.loose or last.loose, branch.solid or last.solid
        self.last = part

    def end_branch(self) -> None:
        self.put(_Part())
        self.loose = self.loose or (self.branch.loose and not self.branch.solid)
        self.solid = self.solid and self.branch.solid
        self.branch = _Part()

    def as_part(self) -> _Part:
        self.end_branch()
        return _Part(self.size, self.loose, self.solid)


def regex_size(pattern: str, param: str) -> tuple[int, int]:
    """The nodes of a regular expression, each times the repeats around it, and its nodes as they are written.

    Raises InvalidRequest if a part that may be nothing but an unlimited repeat is itself repeated without limit, like
    `(a+)+`: there are exponentially many ways to read a text as such a part."""
    groups = [_Group()]
    tokens = 0
    for match in REGEX_TOKEN.finditer(pattern):
        tokens += 1
        kind, top = match.lastgroup, groups[-1]
        if kind == "open":
            groups.append(_Group())
            if len(groups) > MAX_REGEX_DEPTH:
                raise InvalidRequest(f"A regular expression in `{param}` is nested too deeply.", param)
        elif kind == "close" and len(groups) > 1:
            groups.pop()
            groups[-1].put(top.as_part())
        elif kind == "or":
            top.end_branch()
        elif kind == "repeat":
            _repeat(top.last, match, param)
        else:
            top.put(_Part(1, solid=kind != "zero_width"))
    return sum(group.as_part().size for group in groups), tokens


def _repeat(part: _Part, match: re.Match[str], param: str) -> None:
    token = match[0]
    if token == "{}" or (token == "?" and part.is_repeated):  # a brace, or a repeat that takes as little as it can
        return
    low = 1 if token == "+" else int(match["low"] or 0)
    high = 1 if token == "?" else int(match["high"] or 0) if match["comma"] else low
    is_unlimited = token in ("*", "+") or (bool(match["comma"]) and not match["high"])
    if is_unlimited and part.loose:
        raise InvalidRequest(f"A regular expression in `{param}` repeats a group that itself repeats.", param)
    if max(low, high) > MAX_REPEAT:
        raise InvalidRequest(f"A repeat in a regular expression in `{param}` is above {MAX_REPEAT}.", param)
    part.size *= max(low, high, 1)
    part.loose = part.loose or is_unlimited
    part.solid = part.solid and low > 0 and not is_unlimited
    part.is_repeated = True

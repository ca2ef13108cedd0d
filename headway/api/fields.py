"""Sorts the fields of a request into three classes.

    honoured   the engine, or Headway, does what it says; the Structs of the dialects (api/openai.py, api/anthropic.py)
               list these
    ignored    a hint that changes nothing about what the answer means, or a name that Headway does not know
    refused    ignoring it would change the meaning of the answer, or honouring it could harm a shared engine

A dialect's reader accepts honoured fields only. This module looks at what a reader has rejected: it raises for what is
refused and removes what is ignored, at any depth, and the request is read again. So a request without ignored fields
costs nothing more, and what is sent to an engine is always written from the Structs. Values are not decoded: only the
objects that have a Struct are opened.

Which names are hints and which are refused is in api/known_fields.py.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Raw, Struct, inspect

from headway.api.limits import AnyObject
from headway.errors import InvalidRequest

MAX_NAMED = 16  # fields in the header `headway-ignored`
PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
# What a walk may cost. A member of an object takes about 200 bytes and an object a few microseconds, so a request has
# at most one of either for so many of its bytes. Those in values that are not opened count, too.
MIN_BYTES_EACH = 24
ALWAYS_ALLOWED = 2**15
MAX_OBJECTS = 2**15
MAX_NOT_HONOURED = 256  # fields of one object
COUNTED_BYTES = 64 * 1024  # at a time
UNCOUNTED = bytes(set(range(256)) - set(b'":{'))
MAX_BLANKS = 64  # before the first value of a list, to tell its kind

OBJECT, LIST = b"{["
NULL = Raw(b"null")
LEFT_OUT = object()
# The members of an object: as they came, or an object or a list of objects that has been looked at.
Members = dict[str, Any]
_read_object = msgspec.json.Decoder(dict[str, Raw]).decode
_check_objects = msgspec.json.Decoder(list[AnyObject]).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
_read_one = msgspec.json.Decoder(tuple[Raw]).decode
_read_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a field is refused: what to do instead. `code` is what an SDK acts on. `harmless` values ask for nothing.
    A field that `has_place` is honoured in the objects that have it, and refused in all others."""

    advice: str
    code: str | None = None
    harmless: tuple[object, ...] = ()
    has_place: bool = False


@dataclass(frozen=True, slots=True)
class FieldNames:
    """The names of a dialect that are not honoured, wherever they are in a request. `moved` has older names of honoured
    fields: the object and the field in it that they stand for. `alone` are fields whose value may be in a list that has
    no other value."""

    hints: frozenset[str]
    refused: Mapping[str, Refusal]
    refused_types: Mapping[str, str]  # the `type` of an object, such as a content part, and what to do instead
    moved: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    alone: frozenset[str] = frozenset()
    ignored_types: frozenset[str] = frozenset()  # the `type` of items that are left out of a list, such as hosted tools


@dataclass(frozen=True, slots=True)
class Cleaned:
    """A request without the fields that are ignored, and the names of the first of these."""

    body: bytes
    ignored: tuple[str, ...]


class RequestFields:
    """The fields of the requests to one endpoint; `root` is the Struct of its request."""

    def __init__(self, root: type[Struct], names: FieldNames) -> None:
        self.names = names
        self.root = _object_of(inspect.type_info(root))

    def clean(self, body: bytes, *, refuses_unknown: bool) -> Cleaned | None:
        """None if there is nothing to remove. Raises InvalidRequest for what is refused, msgspec errors for what is not
        JSON."""
        check_size(body)
        sorting = _Sorting(self.names, refuses_unknown)
        cleaned = sorting.clean(self.root, _read_object(body), "")
        return Cleaned(_encode(cleaned), tuple(sorting.ignored)) if sorting.has_changed else None


@dataclass(frozen=True, slots=True)
class ObjectFields:
    """A Struct as this module needs it: its decoder, which accepts honoured fields only, its fields, those that are
    objects or lists of them, and its `type`s."""

    read: Callable[[Raw], object]
    names: frozenset[str]
    objects: Mapping[str, ObjectFields]
    types: frozenset[bytes]  # as they are written in JSON

    def all_objects(self, where: str = "") -> dict[str, ObjectFields]:
        """The objects inside this one at any depth, by path."""
        found: dict[str, ObjectFields] = {}
        for name, one in self.objects.items():
            found |= {_path(where, name): one} | one.all_objects(_path(where, name))
        return found


def _object_of(struct: inspect.Type) -> ObjectFields:
    assert isinstance(struct, inspect.StructType)
    objects: dict[str, ObjectFields] = {}
    types: set[bytes] = set()
    for one in struct.fields:
        for kind in _alternatives(one.type):
            if isinstance(kind, inspect.StructType):
                objects[one.encode_name] = _object_of(kind)
            elif isinstance(kind, inspect.LiteralType) and one.encode_name == "type":
                types |= {_encode(value) for value in kind.values}
    names = frozenset(one.encode_name for one in struct.fields)
    return ObjectFields(msgspec.json.Decoder(struct.cls).decode, names, objects, frozenset(types))


def _alternatives(kind: inspect.Type) -> list[inspect.Type]:
    """The types that a value may have; those of its items, if it may be a list."""
    if isinstance(kind, inspect.UnionType):
        return [inner for one in kind.types for inner in _alternatives(one)]
    if isinstance(kind, inspect.Metadata):
        return _alternatives(kind.type)
    return _alternatives(kind.item_type) if isinstance(kind, inspect.ListType) else [kind]


class _Sorting:
    """One walk through a request."""

    def __init__(self, names: FieldNames, refuses_unknown: bool) -> None:
        self._names = names
        self._refuses_unknown = refuses_unknown
        self._objects = 0
        self.ignored: list[str] = []
        self.has_changed = False

    def clean(self, kind: ObjectFields, members: Members, where: str) -> Members:
        """Removes from the object what is ignored; returns the same object."""
        self._objects += 1
        if self._objects > MAX_OBJECTS:
            raise InvalidRequest(f"The request has more than {MAX_OBJECTS:,} messages, content parts and tools.")
        if kind.types and "type" in members:
            self._check_type(kind, members["type"], where)
        doubtful = [name for name in members if name not in kind.names or name in self._names.refused]
        if len(doubtful) > MAX_NOT_HONOURED:
            raise InvalidRequest(f"The request has more than {MAX_NOT_HONOURED} fields that Headway does not honour.")
        for name in doubtful:
            self._sort(kind, members, name, where)
        if not where:
            for name in self._names.alone & members.keys():
                self._take_out(name, members)
        for name, inner in kind.objects.items():
            if name in members:
                self._clean_value(inner, members, name, _path(where, name))
        return members

    def _sort(self, kind: ObjectFields, members: Members, name: str, where: str) -> None:
        """Decide on a field that is not honoured, or not with every value."""
        value = members[name]
        refusal = self._names.refused.get(name)
        if refusal is not None and refusal.has_place and name in kind.names:
            return
        if refusal is not None and not _asks_for_nothing(value, refusal):
            raise InvalidRequest(f"`{_path(where, name)}` is not supported: {refusal.advice}", name, refusal.code)
        if name in kind.names:
            return
        del members[name]
        self.has_changed = True
        if not where and name in self._names.moved:
            self._move(name, value, members)
        else:
            self._ignore(name, where)

    def _clean_value(self, kind: ObjectFields, members: Members, name: str, where: str) -> None:
        value = members[name]
        start = OBJECT if isinstance(value, dict) else memoryview(value)[0]
        if start == OBJECT:
            members[name] = self.clean(kind, value if isinstance(value, dict) else _read_object(value), where)
        elif start == LIST:
            _check_objects(value)  # other items could be small and many
            items = [self._clean_item(kind, one, where) for one in _read_list(value)]
            members[name] = [one for one in items if one is not LEFT_OUT]

    def _clean_item(self, kind: ObjectFields, item: Raw, where: str) -> object:
        """Most messages of a conversation have nothing to remove; it takes less time to decode them than to look."""
        try:
            kind.read(item)
        except msgspec.ValidationError:
            members = _read_object(item)
            if self._names.ignored_types and self._is_left_out(kind, members):
                return LEFT_OUT
            return self.clean(kind, members, where)
        return item

    def _is_left_out(self, kind: ObjectFields, members: Members) -> bool:
        name = _small(members["type"]) if kind.types and "type" in members else None
        if not isinstance(name, str) or name not in self._names.ignored_types or _encode(name) in kind.types:
            return False
        self.has_changed = True
        self._objects += 1
        if self._objects > MAX_OBJECTS:
            raise InvalidRequest(f"The request has more than {MAX_OBJECTS:,} messages, content parts and tools.")
        self._tell(name)
        return True

    def _check_type(self, kind: ObjectFields, value: Raw, where: str) -> None:
        if bytes(value) in kind.types:
            return
        name = _small(value)
        if isinstance(name, str) and _encode(name) not in kind.types:
            known = b", ".join(sorted(kind.types)).decode().replace('"', "")
            advice = self._names.refused_types.get(name) or f"Supported here: {known}."
            raise InvalidRequest(f"`{where}` of type `{_shown(name)}` is not supported. {advice}", _path(where, "type"))

    def _take_out(self, name: str, members: Members) -> None:
        """Replace a list of one text or one list by what is in it."""
        value = memoryview(members[name])
        if value[0] != LIST or bytes(value[:MAX_BLANKS])[1:].lstrip()[:1] not in (b'"', b"["):
            return
        try:
            [members[name]] = _read_one(members[name])
        except msgspec.ValidationError:
            raise InvalidRequest(
                f"Several values of `{name}` are not supported: send a request for each.", name
            ) from None
        self.has_changed = True

    def _move(self, name: str, value: Raw, members: Members) -> None:
        target, inner = self._names.moved[name]
        if _small(value) is None:
            return
        there = members.get(target, NULL)
        if isinstance(there, Raw):
            there = _read_object(there) if _small(there) is not None else {}
        if inner in there:
            raise InvalidRequest(f"`{name}` is an older name of `{target}.{inner}`. Send only the latter.", name)
        members[target] = there | {inner: value}

    def _ignore(self, name: str, where: str) -> None:
        is_known = name in self._names.hints or name in self._names.refused
        if self._refuses_unknown and not is_known:
            place = f" in `{where}`" if where else ""
            raise InvalidRequest(f"Unknown field `{_shown(name)}`{place}. Remove it.", _shown(name))
        self._tell(name)

    def _tell(self, name: str) -> None:
        if len(self.ignored) < MAX_NAMED and (shown := _shown(name)) not in self.ignored:
            self.ignored.append(shown)


def check_size(body: bytes) -> None:
    """Raises InvalidRequest if the body has too many members and objects. Texts may look as if they had many: only then
    it is worth the time to leave out what is in strings."""
    allowed = max(ALWAYS_ALLOWED, len(body) // MIN_BYTES_EACH)
    if body.count(b":") + body.count(b"{") > allowed and _members_and_objects(body) > allowed:
        raise InvalidRequest(
            f"The request is not valid as it is, and has more than {allowed:,} members and objects, too many to remove "
            "what is ignored. Send honoured fields only, or a shorter request."
        )


def _members_and_objects(body: bytes) -> int:
    """Colons and braces outside of strings. Works on a part at a time, because the pieces take much more memory."""
    plain = body.replace(rb"\\", b"").replace(rb"\"", b"").translate(None, UNCOUNTED)
    found, is_inside = 0, False
    for start in range(0, len(plain), COUNTED_BYTES):
        pieces = plain[start : start + COUNTED_BYTES].split(b'"')
        outside = b"".join(pieces[is_inside::2])
        found += outside.count(b":") + outside.count(b"{")
        is_inside ^= len(pieces) % 2 == 0
    return found


def _asks_for_nothing(value: Raw, refusal: Refusal) -> bool:
    """Many clients send a field that they do not use as null or empty."""
    decoded = _small(value)
    return decoded in (None, "", [], {}) or decoded in refusal.harmless


def _small(value: Raw) -> object:
    """The value, if it is short; otherwise an object that is equal to nothing."""
    return _read_any(value) if memoryview(value).nbytes <= 64 else object()


def _path(where: str, name: str) -> str:
    return f"{where}.{name}" if where else name


def _shown(name: str) -> str:
    """A name that a client made up, as it can be told in a header."""
    return name if PLAIN_NAME.fullmatch(name) else "?"

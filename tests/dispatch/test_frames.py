"""What crosses the link comes out as it went in, and nothing else comes out."""

from __future__ import annotations

import importlib.util
import random
import sys
import types
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.core.rate_limit import RateLimit, TokenLimit
from headway.core.trust import TrustDecision
from headway.core.types import Action, Arrived, Board, Call, Delivering, DriverEvent, Event, Left
from headway.dispatch.base import GateEvent
from headway.dispatch.codec import decode_from_dispatcher, decode_from_relay, encode, event_row
from headway.dispatch.frames import (
    MAX_BATCH,
    PROTOCOL,
    Actions,
    AskStatus,
    Beat,
    BeatEcho,
    Count,
    Counted,
    DealAudits,
    Events,
    FromDispatcher,
    FromRelay,
    GateDecided,
    GateJoined,
    GateRecalled,
    GateTold,
    Hello,
    Keep,
    Kept,
    Probe,
    ProbeNow,
    Recall,
    RelayStatus,
    ReplicaStatus,
    Reported,
    Status,
    Turned,
    VerdictsWritten,
    Welcome,
    protocol_of,
)
from headway.dispatch.rows import RowSet

PLAIN: dict[Any, st.SearchStrategy[Any]] = {
    str: st.text(),
    bool: st.booleans(),
    int: st.integers(-(2**63), 2**64 - 1),
    float: st.floats(allow_nan=False),
    type(None): st.none(),
}
CONTROL: list[FromRelay | FromDispatcher] = [
    Hello(PROTOCOL, "relay-1", "run"),
    Beat(1, 2),
    Welcome(3, "[gateway]\n", 0.5, "leader"),
    Turned("not the leader", "tcp://dispatcher-2:7000"),
    BeatEcho(1, is_ready=True, renews=True),
    Probe([("a", True), ("b", False)]),
    ProbeNow("a"),
    Count("r"),
    Reported(),
    Counted("r", 2),
    Keep(1, b"learnt"),
    Kept(3, 1, 0.5, b"learnt"),
    GateJoined("m-auto", "calibration", "{}", 3, [1, 2]),
    GateRecalled("m-auto", 0, [(1, 0.02, 5.5, None), (2, 0.02, 0.0, "differs")], is_all=True),
    VerdictsWritten("m-auto", [1, 2]),
    Recall("m-auto", 7),
    DealAudits("m-auto", [1], [2, 3]),
    AskStatus(PROTOCOL),
    Status("standby"),
    Status(
        "leader",
        3,
        [RelayStatus("relay-1", 2, 0.1), RelayStatus("relay-2", 0, None)],
        [ReplicaStatus("a", "m", is_open=True, seats=8, aboard=2, is_behind=False)],
        more_replicas=1,
        open_replicas=1,
        held=4,
        lag_s=0.01,
    ),
]


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Every value of a type."""
    if hint in PLAIN:
        return PLAIN[hint]
    if is_dataclass(hint):
        kind: Any = hint
        return st.builds(kind, **{name: values(part) for name, part in get_type_hints(kind).items()})
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) in (Union, types.UnionType):
        return st.one_of(*map(values, get_args(hint)))
    assert get_origin(hint) in (list, tuple), hint
    several = st.lists(values(get_args(hint)[0]), max_size=3)
    return several if get_origin(hint) is list else several.map(tuple)


def decode(message: FromRelay | FromDispatcher, payload: bytes) -> FromRelay | FromDispatcher:
    """Decode as the receiver of this message does."""
    return decode_from_relay(payload) if isinstance(message, FromRelay) else decode_from_dispatcher(payload)


@pytest.mark.parametrize("kind", get_args(DriverEvent), ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=40)
def test_every_event_comes_out_as_it_went_in(kind: Any, data: st.DataObject) -> None:
    sent = Events(data.draw(st.lists(values(kind), max_size=4)))
    received = decode(sent, encode(sent))
    assert received == sent
    assert isinstance(received, Events)
    assert all(type(event) is kind for event in received.events)


@pytest.mark.parametrize("kind", get_args(Action), ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=40)
def test_every_action_comes_out_as_it_went_in(kind: Any, data: st.DataObject) -> None:
    sent = Actions(data.draw(st.lists(values(kind), max_size=4)))
    received = decode(sent, encode(sent))
    assert received == sent
    assert isinstance(received, Actions)
    assert all(type(action) is kind for action in received.actions)


@pytest.mark.parametrize("kind", get_args(GateEvent), ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=40)
def test_every_event_of_a_gate_comes_out_as_it_went_in(kind: Any, data: st.DataObject) -> None:
    sent = GateTold("m-auto", data.draw(st.lists(values(kind), max_size=4)))
    received = decode(sent, encode(sent))
    assert received == sent
    assert isinstance(received, GateTold)
    assert all(type(event) is kind for event in received.events)


@pytest.mark.parametrize("kind", get_args(TrustDecision), ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=40)
def test_every_decision_about_a_gate_comes_out_as_it_went_in(kind: Any, data: st.DataObject) -> None:
    sent = GateDecided("m-auto", data.draw(st.lists(values(kind), max_size=4)))
    received = decode(sent, encode(sent))
    assert received == sent
    assert isinstance(received, GateDecided)
    assert all(type(decision) is kind for decision in received.decisions)


@pytest.mark.parametrize("message", CONTROL, ids=lambda message: type(message).__name__)
def test_every_other_message_comes_out_as_it_went_in(message: FromRelay | FromDispatcher) -> None:
    assert decode(message, encode(message)) == message


def test_a_batch_keeps_its_order_and_its_nested_values() -> None:
    limit = TokenLimit(1, 2, 3)
    call = Call("a", "m", "fast", express_limit=limit)
    sent = Events([Arrived(call), Delivering("a"), Arrived(Call("b", "m", "flex")), Left("a", output_tokens=None)])
    assert decode_from_relay(encode(sent)) == sent
    acted = Actions([Board("a", "r", "fast", 40.0, None, RateLimit(limit, 1, 2, 3, 0.5, 0.25))])
    assert decode_from_dispatcher(encode(acted)) == acted


# --- what is refused ---

DELIVERING = get_args(DriverEvent).index(Delivering)
ARRIVED = get_args(DriverEvent).index(Arrived)
WRONG: dict[str, Any] = {
    "no tag": [],
    "an unknown message": [99, []],
    "a message of the other side": [18, []],
    "an unknown event": [1, [[99, "a"]]],
    "no list": [1, "a"],
    "a missing field": [1, [[DELIVERING]]],
    "one field too many": [1, [[DELIVERING, "a", "b"]]],
    "a field of another type": [1, [[DELIVERING, 7]]],
    "one element too many": [1, [], 1],
    "an unknown tier": [1, [[ARRIVED, ["a", "m", "first", "", False, "", False, 0, 1, None, None]]]],
    "a nested value cut short": [1, [[ARRIVED, ["a", "m", "fast", "", False, "", False, 0, 1, [1], None]]]],
    "too many events": [1, [[DELIVERING, "a"]] * (MAX_BATCH + 1)],
    "no array": {"events": []},
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_no_message_is_refused(name: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        decode_from_relay(msgspec.msgpack.encode(WRONG[name]))


def test_the_longest_batch_is_taken() -> None:
    sent = Events([Delivering(str(number)) for number in range(MAX_BATCH)])
    assert decode_from_relay(encode(sent)) == sent


def test_the_greeting_of_a_later_version_is_read() -> None:
    """So that both can say that they differ."""
    assert decode_from_relay(msgspec.msgpack.encode([0, "v", "r", "run", 3, "who", "more"])) == Hello(
        "v", "r", "run", 3, "who"
    )
    assert decode_from_dispatcher(msgspec.msgpack.encode([17, "why", "", "more"])) == Turned("why", "")


def test_a_claimed_length_takes_no_memory() -> None:
    with pytest.raises(ValueError):
        decode_from_relay(b"\x92\x01\xdd\xff\xff\xff\xff")
    with pytest.raises(ValueError):
        decode_from_dispatcher(b"\x92\x14\xdd\x00\x01\x86\xa0")


@pytest.mark.parametrize(
    ("event", "error"),
    [(Delivering("\ud800"), ValueError), (Left("a", prompt_tokens=2**64), OverflowError)],
    ids=["half a character", "a large number"],
)
def test_what_cannot_be_encoded_fails_alone(event: Event, error: type[Exception]) -> None:
    with pytest.raises(error):
        event_row(event)


def test_damaged_messages_raise_nothing_unexpected() -> None:
    dice = random.Random(7)
    for message in (*CONTROL, Events([Arrived(Call("a", "m", "fast"))] * 3)):
        whole = encode(message)
        for _ in range(500):
            damaged = bytearray(whole)
            for _ in range(dice.randint(1, 4)):
                damaged[dice.randrange(len(damaged))] = dice.randrange(256)
            with suppress(ValueError, RecursionError):
                decode(message, bytes(damaged[: dice.randint(0, len(damaged))]))


# --- the version ---

SOURCE = """
from dataclasses import dataclass
from typing import Literal

Colour = Literal["red", "blue"]

@dataclass
class Inner:
    number: int

@dataclass
class First:
    name: str
    colour: Colour
    inner: Inner | None = None
    many: list[Inner] = ()

@dataclass
class Second:
    speed: float

KINDS = [First, Second]
"""
CHANGES = {
    "a field's name": ("name: str", "label: str"),
    "a field's type": ("speed: float", "speed: int"),
    "a new field": ("speed: float", "speed: float\n    late: bool = False"),
    "a value of a literal": ('"blue"', '"blue", "green"'),
    "a nested field": ("number: int", "count: int"),
    "None": ("inner: Inner | None", "inner: Inner"),
    "the order of fields": ("name: str\n    colour: Colour", "colour: Colour\n    name: str"),
    "the order of kinds": ("[First, Second]", "[Second, First]"),
    "a new kind": ("[First, Second]", "[First, Second, Inner]"),
}


def kinds_in(source: str, path: Path) -> Any:
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def version(source: str, path: Path) -> str:
    return protocol_of(RowSet(kinds_in(source, path).KINDS).description)


@pytest.mark.parametrize("change", CHANGES)
def test_the_version_changes_with_every_field(change: str, tmp_path: Path) -> None:
    name = f"kinds_{list(CHANGES).index(change)}"
    before, after = CHANGES[change]
    assert before in SOURCE
    first = version(SOURCE, tmp_path / f"{name}.py")
    assert first == version(SOURCE, tmp_path / f"{name}_same.py")
    assert first != version(SOURCE.replace(before, after), tmp_path / f"{name}_changed.py")


def test_lists_of_dataclasses_come_out_as_they_went_in(tmp_path: Path) -> None:
    module = kinds_in(SOURCE, tmp_path / "kinds_lists.py")
    rows = RowSet(module.KINDS)
    sent = module.First("a", "red", None, [module.Inner(1), module.Inner(2)])
    encoded = msgspec.msgpack.encode(rows.to_row[module.First](sent))
    decoded = msgspec.msgpack.decode(encoded, type=rows.union)
    assert rows.from_row[type(decoded)](decoded) == sent


@dataclass
class Unsendable:
    names: dict[str, int]


@dataclass
class Inherits(TokenLimit):
    more: int = 0


@pytest.mark.parametrize("kind", [Unsendable, Inherits], ids=["a type", "inherited fields"])
def test_a_kind_that_is_not_supported_is_refused_at_once(kind: type) -> None:
    with pytest.raises(TypeError, match="cannot be sent in a row"):
        RowSet([kind])


def test_the_version_is_short() -> None:
    assert len(bytes.fromhex(PROTOCOL)) == 8

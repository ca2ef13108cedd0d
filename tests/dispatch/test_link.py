"""One connection: frames cut anywhere, batches in their order, bounds both ways, and one end of it."""

from __future__ import annotations

import asyncio
import logging
import random
from typing import Any

import pytest

from headway.core.types import Arrived, Board, Call, Cut, Delivering, Event, Finished
from headway.dispatch import link as link_module
from headway.dispatch.codec import decode_from_dispatcher, decode_from_relay, encode
from headway.dispatch.frames import (
    MAX_BATCH,
    Actions,
    Beat,
    BeatEcho,
    Events,
    Hello,
    ProbeNow,
    Welcome,
)
from headway.dispatch.link import MAX_BATCH_BYTES, MAX_FRAME, MAX_UNSENT, Link
from tests.dispatch.links import LENGTH, Remembering, frame, frames_in, wired

pytestmark = pytest.mark.anyio

SAID: list[Any] = [
    Hello("v", "relay-1", "run"),
    Events([Arrived(Call("a", "m", "fast")), Delivering("a"), Finished("a", 10, 20, 40.0)]),
    Beat(1, 2),
    Events([]),
]
GARBAGE = 20_000


async def turn() -> None:
    """Let the event loop finish what it has begun."""
    for _ in range(3):
        await asyncio.sleep(0)


# --- receiving ---


async def test_frames_may_be_cut_at_every_byte() -> None:
    data = b"".join(frame(encode(message)) for message in SAID)
    for cut in range(len(data) + 1):
        link, _wire, got = wired()
        for piece in (data[:cut], data[cut:]):
            link.data_received(piece)
        assert got.messages == SAID


async def test_frames_may_come_byte_by_byte() -> None:
    link, _wire, got = wired()
    for byte in b"".join(frame(encode(message)) for message in SAID):
        link.data_received(bytes([byte]))
    assert got.messages == SAID
    assert not got.lost


async def test_a_frame_that_is_too_long_closes_the_link(caplog: pytest.LogCaptureFixture) -> None:
    link, _wire, got = wired()
    link.data_received(frame(encode(Beat(1, 1))) + LENGTH.pack(MAX_FRAME + 1))
    await turn()
    assert got.messages == [Beat(1, 1)]
    assert got.lost == [f"a frame of {MAX_FRAME + 1} bytes is longer than {MAX_FRAME}"]
    assert "longer than" in caplog.text


async def test_the_longest_frame_is_taken() -> None:
    link, _wire, got = wired()
    empty = len(encode(Hello("", "", "x" * 2**16)))
    hello = Hello("", "", "x" * (2**16 + MAX_FRAME - empty))
    data = frame(encode(hello))
    assert len(data) == LENGTH.size + MAX_FRAME
    for start in range(0, len(data), 2**16):
        link.data_received(data[start : start + 2**16])
    assert got.messages == [hello]


async def test_a_message_that_cannot_be_decoded_closes_the_link(caplog: pytest.LogCaptureFixture) -> None:
    link, _wire, got = wired()
    link.data_received(frame(encode(ProbeNow("r"))) + frame(encode(Beat(1, 1))))  # the dispatcher's, sent to it
    await turn()
    assert got.messages == []
    assert len(got.lost) == 1
    assert "a message cannot be decoded" in got.lost[0]
    assert "cannot be decoded" in caplog.text


async def test_nothing_is_handled_after_a_close() -> None:
    link, _wire, got = wired()

    def close(message: Any) -> None:
        got.messages.append(message)
        link.close("enough")

    got.on_message = close  # type: ignore[method-assign]
    link.data_received(frame(encode(Beat(1, 1))) + frame(encode(Beat(2, 1))))
    await turn()
    assert got.messages == [Beat(1, 1)]
    assert got.lost == ["enough"]


def garbled(dice: random.Random) -> bytes:
    """Random bytes; or a message with some of its bytes replaced, removed or repeated; with or without its length."""
    if dice.random() < 0.3:
        payload = dice.randbytes(dice.randrange(64))
    else:
        good = bytearray(encode(dice.choice(SAID)))
        for _ in range(dice.randint(1, 4)):
            at = dice.randrange(len(good) + 1)
            good[at : at + dice.randrange(3)] = dice.randbytes(dice.randrange(3))
        payload = bytes(good)
    return payload if dice.random() < 0.1 else frame(payload)


async def test_garbage_never_raises(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.CRITICAL)
    dice = random.Random(5)
    ended = 0
    for _ in range(GARBAGE):
        link, _wire, got = wired()
        data = garbled(dice)
        cut = dice.randrange(len(data) + 1)
        for piece in (data[:cut], data[cut:]):
            if not got.lost:
                link.data_received(piece)
        await asyncio.sleep(0)
        assert len(got.lost) <= 1
        ended += len(got.lost)
    assert ended > GARBAGE / 2


# --- sending ---


async def test_what_one_turn_sends_is_one_write_in_its_order() -> None:
    link, wire, _got = wired()
    board, cut = Board("a", "r", "fast", 40.0), Cut("b")
    link.act(board)
    link.act(cut)
    link.send(BeatEcho(1, is_ready=True, renews=True))
    link.act(cut)
    assert wire.written == []
    await turn()
    [written] = wire.written
    received = [decode_from_dispatcher(payload) for payload in frames_in(written)]
    assert received == [Actions([board, cut]), BeatEcho(1, is_ready=True, renews=True), Actions([cut])]
    link.act(board)
    await turn()
    assert len(wire.written) == 2


async def test_answers_to_received_data_are_one_write_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    link, wire, got = wired()
    monkeypatch.setattr(got, "on_message", lambda beat: link.send(BeatEcho(beat.number, is_ready=True, renews=True)))
    link.act(Cut("a"))  # of this turn, too, and sent first
    link.data_received(b"".join(frame(encode(Beat(number, 0))) for number in (1, 2)))
    [written] = wire.written
    echoes = [BeatEcho(number, is_ready=True, renews=True) for number in (1, 2)]
    assert [decode_from_dispatcher(payload) for payload in frames_in(written)] == [Actions([Cut("a")]), *echoes]
    await turn()
    assert len(wire.written) == 1
    link.act(Cut("b"))
    assert len(wire.written) == 1
    await turn()
    assert len(wire.written) == 2


async def test_events_and_actions_are_not_mixed() -> None:
    link, wire, _got = wired()
    link.tell(Delivering("a"))
    link.act(Cut("a"))
    link.tell(Delivering("b"))
    await turn()
    first, second, third = frames_in(wire.written[0])
    assert decode_from_relay(first) == Events([Delivering("a")])
    assert decode_from_dispatcher(second) == Actions([Cut("a")])
    assert decode_from_relay(third) == Events([Delivering("b")])


async def test_a_batch_is_bounded_in_number_and_in_bytes() -> None:
    link, wire, _got = wired()
    many: list[Event] = [Delivering(str(number)) for number in range(2 * MAX_BATCH + 1)]
    large: list[Event] = [Delivering("x" * (MAX_BATCH_BYTES // 3)) for _ in range(4)]
    for event in (*many, *large):
        link.tell(event)
    await turn()
    messages = [decode_from_relay(payload) for payload in frames_in(b"".join(wire.written))]
    assert all(isinstance(message, Events) for message in messages)
    batches = [message.events for message in messages if isinstance(message, Events)]
    assert [event for batch in batches for event in batch] == many + large
    assert [len(batch) for batch in batches] == [MAX_BATCH, MAX_BATCH, 3, 2]


async def test_what_cannot_be_sent_fails_alone() -> None:
    link, wire, got = wired()
    link.tell(Delivering("a"))
    with pytest.raises(ValueError):
        link.tell(Delivering("\ud800"))
    with pytest.raises(OverflowError):
        link.tell(Finished("a", 2**64, 0))
    with pytest.raises(ValueError, match="longer than"):
        link.tell(Delivering("x" * (MAX_BATCH_BYTES + 1)))
    with pytest.raises(ValueError, match="longer than"):
        link.send(Welcome(1, "x" * MAX_FRAME, 1.0, "leader"))
    link.tell(Delivering("b"))
    await turn()
    [payload] = frames_in(wire.written[0])
    assert decode_from_relay(payload) == Events([Delivering("a"), Delivering("b")])
    assert not got.lost


async def test_a_peer_that_does_not_read_loses_the_link(caplog: pytest.LogCaptureFixture) -> None:
    link, wire, got = wired()
    wire.unsent = MAX_UNSENT
    link.tell(Delivering("a"))
    await turn()
    assert not got.lost
    wire.unsent = MAX_UNSENT + 1
    link.tell(Delivering("b"))
    await turn()
    assert got.lost == [f"the other side does not read: {MAX_UNSENT + 1} bytes wait to be sent"]
    assert "does not read" in caplog.text


# --- the end ---


async def test_closing_sends_what_waits_and_reports_once() -> None:
    link, wire, got = wired()
    link.send(ProbeNow("r"))
    link.close("it is done")
    link.close("again")
    link.abort("and again")
    await turn()
    assert [decode_from_dispatcher(payload) for payload in frames_in(wire.written[0])] == [ProbeNow("r")]
    assert got.lost == ["it is done"]


async def test_a_peer_that_will_send_nothing_more_is_lost() -> None:
    """Even if it does not read either: what is unsent would keep the connection open."""
    link, wire, got = wired()
    wire.unsent = 1
    link.eof_received()
    await turn()
    assert got.lost == ["the other side closed the connection"]


async def test_a_lost_link_takes_nothing_more_and_keeps_nothing() -> None:
    link, wire, got = wired()
    wire.abort()
    await turn()
    assert got.lost == ["the other side closed the connection"]
    for _ in range(3):
        link.tell(Delivering("a"))
        link.act(Cut("a"))
        link.send(ProbeNow("r"))
    await turn()
    assert wire.written == []
    assert not link._out
    assert not link._rows


async def test_what_waits_is_dropped_if_the_connection_ends_first() -> None:
    link, wire, got = wired()
    link.tell(Delivering("a"))
    link.connection_lost(OSError("reset"))
    await turn()
    assert got.lost == ["the connection failed: reset"]
    assert wire.written == []


async def test_a_close_does_not_wait_for_a_peer_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real socket: the other end reads nothing, and what is unsent would keep the connection open."""
    monkeypatch.setattr(link_module, "CLOSE_S", 0.01)
    loop = asyncio.get_running_loop()
    released = asyncio.Event()

    async def never_reads(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await released.wait()
        writer.close()

    server = await asyncio.start_server(never_reads, "127.0.0.1", 0)
    made: list[Remembering] = []

    def make(link: Link) -> Remembering:
        made.append(Remembering(link))
        return made[0]

    port = server.sockets[0].getsockname()[1]
    await loop.create_connection(lambda: Link("a", decode_from_relay, make).as_protocol(), "127.0.0.1", port)
    link = made[0].link
    for _ in range(3):
        link.send(Welcome(1, "x" * (MAX_FRAME - 100), 1.0, "leader"))
    link.close("it is done")
    await made[0].until(lost=True)
    assert made[0].lost == ["it is done"]
    released.set()
    server.close()
    await server.wait_closed()

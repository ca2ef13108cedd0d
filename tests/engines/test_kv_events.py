"""An engine's KV events say what its cache has lost, and what an engine that lies makes of them."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from headway.core.types import ReplicaCacheLost
from headway.engines.kv_blocks import ReadPrompt
from headway.engines.kv_events import MAX_KEYS, MAX_LOST, MAX_PROMPT_BYTES, TRIES, CacheEvents

SIZE = 4  # tokens of a block
ALL_LOST = [ReplicaCacheLost("r0")]


class Engine:
    """Encodes events as vLLM does."""

    def __init__(self) -> None:
        self.number = 0

    def message(self, *events: dict[str, Any]) -> list[bytes]:
        number, self.number = self.number, (self.number + 1) % 2**64
        return [b"", number.to_bytes(8), msgspec.msgpack.encode((1.5, events, 0))]


def name(ids: list[int], salt: str = "", adapter: str = "") -> bytes:
    """The engine's own hash of a block that ends with these tokens."""
    return repr((ids, salt, adapter)).encode()[-40:].rjust(40)


def stored(ids: list[int], *, after: int = 0, salt: str = "", adapter: str = "", **more: Any) -> dict[str, Any]:
    """The blocks of a prompt behind so many tokens."""
    ends = range(after + SIZE, len(ids) + 1, SIZE)
    extras = [[one for one in (adapter, salt if end == SIZE else "") if one] or None for end in ends]
    return {
        "type": "BlockStored",
        "block_hashes": [name(ids[:end], salt, adapter) for end in ends],
        "parent_block_hash": name(ids[:after], salt, adapter) if after else None,
        "token_ids": ids[after:],
        "block_size": SIZE,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": adapter or None,
        "extra_keys": extras if any(extras) else None,
        "group_idx": 0,
        "kv_cache_spec_kind": "full_attention",
        **more,
    }


def removed(*ids: list[int], **more: Any) -> dict[str, Any]:
    return {"type": "BlockRemoved", "block_hashes": [name(one) for one in ids], "medium": "GPU", "group_idx": 0, **more}


def tokens(count: int, first: int = 100) -> list[int]:
    return list(range(first, first + count))


def read(ids: list[int], *keys: int, **more: str) -> ReadPrompt:
    """A prompt whose keys are of prefixes of equal lengths, the last one of all of it."""
    shares = tuple((place + 1) / len(keys) for place in range(len(keys)))
    return ReadPrompt(msgspec.json.encode(ids)[1:-1], keys, shares, **more)


def take(events: CacheEvents, frames: list[bytes]) -> list[ReplicaCacheLost]:
    for _ in events.receive(frames):
        pass
    events.check()
    return events.losses()


def made(share: int = 1000) -> tuple[CacheEvents, Engine]:
    return CacheEvents("r0", lambda: share), Engine()


def test_a_block_that_is_evicted_takes_the_longer_prefixes_with_it() -> None:
    events, engine = made()
    ids = tokens(16)
    assert take(events, engine.message(stored(ids))) == []
    events.read(read(ids, 1, 2, 3, 4))
    assert take(events, engine.message(removed(ids[:12]))) == [ReplicaCacheLost("r0", [4, 3])]
    assert take(events, engine.message(removed(ids[:16]), removed(ids[:12]))) == []  # it is known
    assert take(events, engine.message(removed(ids[:4]))) == [ReplicaCacheLost("r0", [2, 1])]


def test_a_prompt_that_continues_another_loses_what_they_share_with_it() -> None:
    events, engine = made()
    ids, other = tokens(12), [*tokens(4), *tokens(4, 900)]
    take(events, engine.message(stored(ids[:8])))
    take(events, engine.message(stored(ids, after=8), stored(other, after=4)))
    events.read(read(ids, 1, 2, 3))
    events.read(read(other, 1, 8))
    [lost] = take(events, engine.message(removed(ids[:4])))
    assert sorted(lost.keys or ()) == [1, 2, 3, 8]


def test_a_prompt_whose_blocks_are_stored_later_is_looked_up_again() -> None:
    events, engine = made()
    ids, other = tokens(8), tokens(4, 900)
    take(events, engine.message(stored(other)))
    for late in (False, True):
        events.read(read(ids, 1, 2))
        for _ in range(TRIES if late else TRIES - 1):
            take(events, engine.message(stored(other), removed(other)))
        lost = take(events, engine.message(stored(ids), removed(ids)))
        assert lost == ([] if late else [ReplicaCacheLost("r0", [2])])
        take(events, engine.message(removed(ids[:4])))


def test_a_prefix_ends_with_its_last_whole_block() -> None:
    events, engine = made()
    ids = tokens(18)
    take(events, engine.message(stored(ids[:16])))
    events.read(ReadPrompt(b",".join(b"%d" % one for one in ids), (1, 2, 3), (0.1, 0.5, 1.0)))
    assert take(events, engine.message(removed(ids[:16]))) == [ReplicaCacheLost("r0", [3])]
    assert take(events, engine.message(removed(ids[:12]))) == []  # the second ends with the ninth token
    assert take(events, engine.message(removed(ids[:8]))) == [ReplicaCacheLost("r0", [2])]


@pytest.mark.parametrize("own", [{"salt": "a"}, {"adapter": "a"}, {"salt": "b", "adapter": "a"}])
def test_tenants_and_adapters_have_their_own_blocks(own: dict[str, Any]) -> None:
    events, engine = made()
    ids = tokens(8)
    take(events, engine.message(stored(ids), stored(ids, **own)))
    events.read(read(ids, 1, 2))
    events.read(read(ids, 8, 9, **own))
    gone = removed()
    gone["block_hashes"] = [name(ids[:4], **own)]
    assert take(events, engine.message(gone)) == [ReplicaCacheLost("r0", [9, 8])]
    assert take(events, engine.message(removed(ids[:4]))) == [ReplicaCacheLost("r0", [2, 1])]


def test_an_image_makes_another_prompt_of_the_same_tokens() -> None:
    events, engine = made()
    ids = tokens(8)
    take(events, engine.message(stored(ids, extra_keys=[[["a1b2", 3]], None])))
    events.read(read(ids, 1, 2))
    assert take(events, engine.message(removed(ids[:4]))) == []


def test_a_block_that_is_there_twice_is_lost_with_the_second() -> None:
    events, engine = made()
    ids = tokens(4)
    take(events, engine.message(stored(ids), stored(ids)))
    events.read(read(ids, 1))
    assert take(events, engine.message(removed(ids))) == []
    assert take(events, engine.message(removed(ids))) == [ReplicaCacheLost("r0", [1])]


def test_a_prompt_that_is_read_again_is_followed_again() -> None:
    events, engine = made()
    ids = tokens(8)
    for _ in range(3):
        take(events, engine.message(stored(ids)))
        events.read(read(ids, 1, 2))
        assert take(events, engine.message(removed(ids[:8], ids[:4]))) == [ReplicaCacheLost("r0", [2, 1])]


@pytest.mark.parametrize(
    "more",
    [
        {"medium": "CPU"},
        {"locality": "REMOTE"},
        {"group_idx": 1},
        {"block_size": 8},
        {"kv_cache_spec_kind": "sliding_window"},
        {"token_ids": [1, 2, 3]},
        {"parent_block_hash": b"unknown"},
    ],
)
def test_other_memories_and_other_layers_are_left_out(more: dict[str, Any]) -> None:
    events, engine = made()
    first = tokens(4, 500)
    ids = tokens(8)
    take(events, engine.message(stored(first), stored(ids, **more)))
    events.read(read(ids, 1, 2))
    assert take(events, engine.message(removed(ids[:4]))) == []
    events.read(read(first, 3))
    for elsewhere in ({"medium": "CPU"}, {"group_idx": 1}):
        assert take(events, engine.message(removed(first, **elsewhere))) == []
    assert take(events, engine.message(removed(first))) == [ReplicaCacheLost("r0", [3])]


def test_a_cache_that_was_cleared_is_lost() -> None:
    events, engine = made()
    take(events, engine.message(stored(tokens(4))))
    events.read(read(tokens(4), 1))
    assert take(events, engine.message({"type": "AllBlocksCleared"})) == ALL_LOST
    assert take(events, engine.message(removed(tokens(4)))) == []


@pytest.mark.parametrize("next_number", [0, 1, 4, 2**64 - 2])
def test_messages_that_are_missing_and_an_engine_that_begins_again_lose_all(next_number: int) -> None:
    events, engine = made()
    engine.number = 1  # the first one may have any number
    assert take(events, engine.message(stored(tokens(4)))) == []
    events.read(read(tokens(4), 1))
    engine.number = next_number
    assert take(events, engine.message(stored(tokens(4, 900)))) == ALL_LOST
    assert take(events, engine.message(removed(tokens(4)))) == []


LIES: list[list[bytes]] = [
    [],
    [b""],
    [b"", b"1", b""],
    [b"", bytes(8), b""],
    [b"", bytes(8), b"\xff" * 100],
    [b"", bytes(8), b"\x91" * 100_000],
    [b"", bytes(8), msgspec.msgpack.encode({"events": []})],
    [b"", bytes(8), msgspec.msgpack.encode((1.0, [{"type": "Unknown"}]))],
    [b"", bytes(8), msgspec.msgpack.encode((1.0, [{"type": "BlockRemoved", "block_hashes": ["text"]}]))],
    [b"", bytes(8), msgspec.msgpack.encode((1.0, [{"type": "BlockRemoved", "block_hashes": [bytes(65)]}]))],
    [b"", bytes(8), msgspec.msgpack.encode((1.0, [stored(tokens(4), token_ids=[-1, 2, 3, 4])]))],
    [b"", bytes(8), msgspec.msgpack.encode((1.0, [stored(tokens(4), token_ids=[2**32, 2, 3, 4])]))],
    [b"", bytes(8), msgspec.msgpack.encode((1.0, [stored(tokens(4), block_size=0)]))],
    [b"", bytes(8), b"\x92\xcb" + bytes(8) + b"\x91\x81\xa4type\xa4\xff\xff\xff\xff"],
    [b"", bytes(8), b"", b""],
]


@pytest.mark.parametrize("frames", LIES, ids=range(len(LIES)))
def test_what_cannot_be_read_removes_nothing_and_raises_nothing(frames: list[bytes]) -> None:
    events, engine = made()
    assert take(events, frames) == []
    has_number = len(frames) == 3 and len(frames[1]) == 8
    engine.number = int(has_number)
    assert take(events, engine.message(stored(tokens(4)))) == []
    events.read(read(tokens(4), 1))
    assert take(events, engine.message(removed(tokens(4)))) == [ReplicaCacheLost("r0", [1])]


def test_a_lie_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    events, _ = made()
    for number in range(100):
        take(events, [b"", number.to_bytes(8), b"\xff"])
        take(events, [b""])
    assert len(caplog.records) == 2


@pytest.mark.parametrize("ids", [b"", b"1,", b"-5,3", b"1.5", b"9" * 100, b"[1]", b'"a"'])
def test_token_ids_that_are_none_find_nothing(ids: bytes) -> None:
    events, engine = made()
    take(events, engine.message(stored(tokens(4))))
    events.read(ReadPrompt(ids, (1,), (1.0,)))
    assert take(events, engine.message(removed(tokens(4)))) == []


def test_one_name_for_two_blocks_is_not_believed() -> None:
    events, engine = made()
    ids = tokens(8)
    take(events, engine.message(stored(ids)))
    loop = stored(ids, after=4)
    loop["block_hashes"], loop["parent_block_hash"] = [name(ids[:4])], name(ids[:8])
    take(events, engine.message(loop))
    events.read(read(ids, 1, 2))
    [lost] = take(events, engine.message(removed(ids[:4]), removed(ids[:4])))
    assert lost.keys == [2, 1]


def test_what_is_kept_is_bounded() -> None:
    events, engine = made(share=10)
    for number in range(20):
        ids = tokens(40, 1000 * number)
        take(events, engine.message(stored(ids)))
        assert not events.losses()
        for key in range(20):
            events.read(read(ids, key, 100 + key))
    blocks: Any = events._blocks
    assert len(blocks) == 10
    ids = tokens(80)  # more than may be kept
    take(events, engine.message(stored(ids)))
    assert len(blocks) <= 10
    events.read(read(ids, 7))
    for number in range(2 * MAX_PROMPT_BYTES // 3000):
        events.read(ReadPrompt(b"1" * 1000, (number,), (1.0,)))
    assert MAX_PROMPT_BYTES // 3100 < len(events._prompts) < MAX_PROMPT_BYTES // 3000


def test_a_share_that_becomes_less_is_kept_to() -> None:
    share = 100
    events, engine = CacheEvents("r0", lambda: share), Engine()
    for frames in [engine.message(stored(tokens(200, number * 1000))) for number in range(2)]:
        for _ in events.receive(frames):
            pass
    share = 10
    for number in range(100):
        for _ in events.receive(engine.message(stored(tokens(4, 5000 + number)))):
            pass
    events.check()


@pytest.mark.parametrize(("count", "told"), [(MAX_KEYS, [MAX_KEYS]), (MAX_KEYS + 1, [MAX_KEYS, 1]), (MAX_LOST + 1, [])])
def test_losses_are_told_in_small_events_and_very_many_as_all(count: int, told: list[int]) -> None:
    events, engine = made(share=10_000)
    ids = tokens(4)
    take(events, engine.message(stored(ids)))
    for key in range(count):
        events.read(read(ids, key))
    lost = take(events, engine.message(removed(ids)))
    assert [len(one.keys or ()) for one in lost] == told if told else lost == ALL_LOST


def test_a_long_message_is_taken_in_small_steps() -> None:
    events, engine = made(share=100_000)
    ids = [number % 50_000 for number in range(40_000)]
    chain = stored(ids[:4], token_ids=ids, block_hashes=list(range(10_000)))
    assert len(list(events.receive(engine.message(chain)))) > 70
    events.read(read(ids, 1))
    gone = removed()
    gone["block_hashes"] = [0]
    assert len(list(events.receive(engine.message(gone)))) > 140  # to find the prompt, and to forget its blocks
    assert events.losses() == [ReplicaCacheLost("r0", [1])]
    events.check()


def test_many_blocks_that_continue_one_are_forgotten_quickly() -> None:
    events, engine = made(share=60_000)
    root = tokens(4)
    take(events, engine.message(stored(root)))
    for first in range(0, 50_000, 5_000):
        children = [stored([*root, *tokens(4, number)], after=4) for number in range(first, first + 5_000)]
        for _ in events.receive(engine.message(*children)):
            pass
    for _ in events.receive(engine.message(removed(root))):
        pass
    blocks: Any = events._blocks
    assert len(blocks) == 0


@pytest.mark.parametrize("seed", range(20))
def test_any_events_keep_the_tree_whole(seed: int) -> None:
    events, engine = made(share=12)
    dice, lost = random.Random(seed), 0

    def prompt() -> list[int]:
        return [100 + dice.randrange(2) * (place == 0) for _ in range(dice.randrange(1, 6)) for place in range(SIZE)]

    for _ in range(300):
        ids, other = prompt(), prompt()
        after = SIZE * dice.randrange(len(ids) // SIZE)
        frames = engine.message(stored(ids, after=after), removed(other[: SIZE * dice.randrange(6)]))
        engine.number += dice.random() < 0.02
        lost += len(take(events, frames))
        events.read(read(ids, *range(dice.randrange(4))))
    assert lost

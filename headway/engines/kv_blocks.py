"""Which blocks an engine has in its prefix cache, as its KV events say, and which prefixes of prompts need them.

vLLM names a block by a hash that is not computed here. So each block gets a digest: of the digest before it, its
tokens, and what else makes it differ (an adapter, a tenant's salt, an image). The blocks of a prompt are found by the
digests of its token ids.

The blocks are a tree, because each one continues another. With a block that is removed, all that continue it are
forgotten, and the prefixes that end in one of these are lost. Where a prefix ends is estimated: core's keys are of
bytes.

Invariant: a block's parent is here, and a block is an end if no other one continues it (`check`). At most `share()`
blocks are kept, and as many keys; ends that were stored first are forgotten first, which loses no prefix. Work is done
in steps: a method that is a generator yields after at most STEP blocks, and no other may run before it has ended.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from hashlib import blake2b
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Raw, Struct

BlockHash = Annotated[bytes, Meta(max_length=64)] | int
TokenId = Annotated[int, Meta(ge=0, lt=2**32)]

STEP: Final = 128  # blocks
FORGOTTEN_AT_ONCE: Final = 2  # blocks for each that is stored, and keys; more than one, since the share can become less
ROOT: Final = b""  # the digest before the first block
ID_BYTES: Final = array("I").itemsize
NO_EXTRAS: Final = msgspec.msgpack.encode(None)
IN_MEMORY: Final = (None, "GPU")  # media of blocks from which a prompt can go on at once; the CPU's build says GPU too
# Kinds of layers that need every block of a prompt. Others free blocks while a prefix can still be used.
NEEDS_ALL: Final = (None, "full_attention", "mla_attention", "sink_full_attention")

_read_ids = msgspec.json.Decoder(list[TokenId]).decode
_encode = msgspec.msgpack.Encoder().encode


class BlockStored(Struct, tag=True):
    """Of vLLM's, the fields that are needed. The blocks continue each other."""

    block_hashes: list[BlockHash]
    token_ids: list[TokenId]
    block_size: Annotated[int, Meta(ge=1, le=2**16)]
    parent_block_hash: BlockHash | None = None
    medium: str | None = None
    extra_keys: list[Raw] | None = None  # of each block
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    locality: str | None = None


class BlockRemoved(Struct, tag=True):
    block_hashes: list[BlockHash]
    medium: str | None = None
    group_idx: int | None = None
    locality: str | None = None


class AllBlocksCleared(Struct, tag=True):
    pass


@dataclass(frozen=True, slots=True)
class ReadPrompt:
    """A prompt that an engine has read: its token ids, and core's keys of its prefixes."""

    ids: bytes  # JSON numbers with commas between them
    keys: tuple[int, ...]
    shares: tuple[float, ...]  # of each key: which share of the prompt its prefix is
    adapter: str = ""
    salt: str = ""


class CachedBlock:
    __slots__ = ("copies", "digest", "keys", "longer", "parent")

    def __init__(self, digest: bytes, parent: BlockHash | None) -> None:
        self.digest = digest
        self.parent = parent
        self.copies = 1  # two calls that read the same prompt at the same time store it twice
        self.longer: set[BlockHash] = set()  # the blocks that continue it
        self.keys: set[int] = set()  # of the prefixes that end with it


class CachedBlocks:
    def __init__(self, share: Callable[[], int]) -> None:
        """`share` is how many blocks may be kept at the moment."""
        self.lost: dict[int, None] = {}  # keys of prefixes that are not cached any more, until somebody takes them
        self._share = share
        self.clear()

    def __len__(self) -> int:
        return len(self._blocks)

    def clear(self) -> None:
        """Forget all, and lose nothing."""
        self._blocks: dict[BlockHash, CachedBlock] = {}
        self._by_digest: dict[bytes, BlockHash] = {}
        self._ends: OrderedDict[BlockHash, None] = OrderedDict()
        self._block_of: OrderedDict[int, BlockHash] = OrderedDict()  # of each key
        # Of the first block. Others belong to another group of layers, and one group says what is cached.
        self._kind: tuple[int, int | None] | None = None

    def stored(self, event: BlockStored) -> Iterator[None]:
        hashes, size = event.block_hashes, event.block_size * ID_BYTES
        is_whole = len(event.token_ids) == len(hashes) * event.block_size
        if not (is_whole and hashes and event.medium in IN_MEMORY and event.kv_cache_spec_kind in NEEDS_ALL):
            return
        kind = event.block_size, event.group_idx
        self._kind = self._kind or kind
        parent = event.parent_block_hash
        if kind != self._kind or event.locality == "REMOTE" or (parent is not None and parent not in self._blocks):
            return  # what follows an unknown block cannot be told
        digest = ROOT if parent is None else self._blocks[parent].digest
        extras = event.extra_keys or []
        ids = memoryview(array("I", event.token_ids).tobytes())
        for place, name in enumerate(hashes):
            extra = bytes(extras[place]) if place < len(extras) else NO_EXTRAS
            digest = digest_after(digest, extra, ids[place * size : (place + 1) * size])
            if not self._store(name, digest, parent):
                return
            parent = name
            self._make_room()
            if parent not in self._blocks:
                return
            if place % STEP == STEP - 1:
                yield

    def _store(self, name: BlockHash, digest: bytes, parent: BlockHash | None) -> bool:
        """Returns False if the engine has said before that this is another block."""
        if (known := self._blocks.get(name)) is not None:
            known.copies += 1
            if name in self._ends:
                self._ends.move_to_end(name)
            return known.digest == digest
        self._blocks[name] = CachedBlock(digest, parent)
        self._by_digest[digest] = name
        self._ends[name] = None
        if parent is not None:
            self._blocks[parent].longer.add(name)
            self._ends.pop(parent, None)
        return True

    def _make_room(self) -> None:
        for _ in range(FORGOTTEN_AT_ONCE):
            if len(self._blocks) > self._share():
                self._forget(next(iter(self._ends)))
            if len(self._block_of) > self._share():
                self._unname(next(iter(self._block_of)))

    def removed(self, event: BlockRemoved) -> Iterator[None]:
        if self._kind is None or event.group_idx != self._kind[1] or event.medium not in IN_MEMORY:
            return
        for place, name in enumerate(event.block_hashes):
            if (block := self._blocks.get(name)) is not None:
                block.copies -= 1
                if not block.copies:
                    yield from self._lose(name)
            if place % STEP == STEP - 1:
                yield

    def _lose(self, name: BlockHash) -> Iterator[None]:
        """The block, and those that continue it, from their ends on."""
        at, steps = name, 0
        while name in self._blocks:
            block = self._blocks[at]
            if block.longer:
                at = block.longer.pop()  # `next(iter(...))` looks at all that were taken out before
                continue
            self.lost |= dict.fromkeys(block.keys)
            self._forget(at)
            at = at if at == name or block.parent is None else block.parent
            steps += 1
            if steps % STEP == 0:
                yield

    def read(self, prompt: ReadPrompt) -> Generator[None, None, bool]:
        """Find the blocks in which the prefixes of a prompt end. Returns whether all were found. Raises
        msgspec.MsgspecError if its ids are none."""
        if self._kind is None:
            return False
        block_tokens = self._kind[0]
        ids = array("I", _read_ids(b"[" + prompt.ids + b"]"))
        size, data, digest, path = block_tokens * ID_BYTES, memoryview(ids.tobytes()), ROOT, list[BlockHash]()
        extra, others = extras_of(prompt.adapter, prompt.salt), extras_of(prompt.adapter)
        for start in range(0, len(ids) // block_tokens * size, size):
            digest = digest_after(digest, extra, data[start : start + size])
            if (name := self._by_digest.get(digest)) is None:
                break
            path.append(name)
            extra = others
            if len(path) % STEP == 0:
                yield
        blocks = 0
        for key, share in zip(prompt.keys, prompt.shares, strict=False):
            blocks = int(share * len(ids)) // block_tokens
            if 0 < blocks <= len(path) and path[blocks - 1] in self._blocks:
                self._end_in(key, path[blocks - 1])
        return blocks <= len(path)  # the last one is the longest

    def _end_in(self, key: int, name: BlockHash) -> None:
        self._unname(key)
        self._blocks[name].keys.add(key)
        self._block_of[key] = name
        self._make_room()

    def _unname(self, key: int) -> None:
        if (name := self._block_of.pop(key, None)) is not None:
            self._blocks[name].keys.discard(key)

    def _forget(self, name: BlockHash) -> None:
        """Forget an end."""
        block = self._blocks.pop(name)
        del self._ends[name]
        if self._by_digest.get(block.digest) == name:
            del self._by_digest[block.digest]
        for key in block.keys:
            del self._block_of[key]
        if block.parent is not None:
            parent = self._blocks[block.parent]
            parent.longer.discard(name)
            if not parent.longer:
                self._ends[block.parent] = None
                self._ends.move_to_end(block.parent, last=False)

    def check(self) -> None:
        """Raise AssertionError if the invariant does not hold."""
        assert len(self._blocks) <= self._share() >= len(self._block_of), "too much is kept"
        assert self._ends.keys() == {name for name, block in self._blocks.items() if not block.longer}, "ends"
        for name, block in self._blocks.items():
            assert block.parent is None or name in self._blocks[block.parent].longer, "a block has lost its parent"
            assert all(self._blocks[one].parent == name for one in block.longer), "a block is continued by a stranger"
            assert all(self._block_of[key] == name for key in block.keys), "a prefix ends twice"
            assert block.copies > 0, "a block that was removed is kept"
        assert sum(len(block.keys) for block in self._blocks.values()) == len(self._block_of), "prefixes are miscounted"
        assert all(name in self._blocks for name in self._by_digest.values()), "a digest of a block that is gone"


def digest_after(before: bytes, extra: bytes, ids: memoryview) -> bytes:
    digest = blake2b(before, digest_size=16)
    digest.update(extra)
    digest.update(ids)
    return digest.digest()


def extras_of(*names: str) -> bytes:
    """What vLLM adds to the hash of a block, as its events say it."""
    extras = [name for name in names if name]
    return _encode(extras) if extras else NO_EXTRAS

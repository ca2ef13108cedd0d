"""What core knows about a prompt: keys of its prefixes, and its estimated length. Core never sees the prompt."""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from itertools import takewhile
from typing import Final

from headway.core.types import KEYED_TOKENS
from headway.wire import Request

# Counted over the whole request body, JSON included. English text has about four bytes per token; a prompt in a
# language with fewer is estimated too short.
BYTES_PER_TOKEN: Final = 4
KEY_BYTES: Final = 8
MAX_KEY: Final = 2**63 - 1  # signed numbers of 64 bits are read everywhere


def prompt_tokens_of(body: bytes, image_chars: int = 0) -> int:
    """Estimated from the body's length without its images."""
    return (len(body) - image_chars) // BYTES_PER_TOKEN


def prompt_start(body: bytes, *fields: bytes) -> int:
    """Where the prompt begins in an encoded request: at the first of these fields, which come one after the other. The
    last of them is always there."""
    end = body.find(b'"%b":' % fields[-1])
    starts = [body.find(b'"%b":' % field, 0, end) for field in fields[:-1]]
    return min([end, *(start for start in starts if start >= 0)])


def with_prefix_keys(request: Request) -> Request:
    """A tenant's prompts may be found in an engine's cache only by its own calls, so its salt is part of the keys."""
    if not request.prompt_start:
        return request
    keys, tokens = prefix_keys(request.body, request.prompt_start, request.call.model, request.cache_salt)
    return replace(request, call=replace(request.call, prefix_keys=keys, prefix_tokens=tokens)) if keys else request


def prefix_keys(body: bytes, start: int, model: str, secret: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Keys of prefixes of the prompt, the shortest first, and the estimated tokens of each. Prompts for the same model
    that are the same up to there have the same key if the secret is the same too; without it nobody can tell which
    prompt has a key. What follows the prompt in the body may be part of the longest prefixes, which are then new."""
    tokens = tuple(takewhile(((len(body) - start) // BYTES_PER_TOKEN).__ge__, KEYED_TOKENS))
    digest = blake2b(model.encode(), digest_size=KEY_BYTES, key=secret.encode())
    text, at, keys = memoryview(body), start, []
    for count in tokens:
        end = start + count * BYTES_PER_TOKEN
        digest.update(text[at:end])
        at = end
        keys.append(int.from_bytes(digest.copy().digest()) & MAX_KEY)
    return tuple(keys), tokens

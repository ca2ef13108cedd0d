"""Stored responses, as clients of /v1/responses see them: continued, read, deleted.

    body ──► expand ──► the reader, the engine ──► StoringClient ──► the client
               │                                        │
               └────────── ledger/responses.py ◄────────┘

A call that continues a response gets all items that led to it, and one that refers to an item gets the item, so that
any engine can serve it. A response is stored before its last byte is sent, because the client may continue it at once.
None of this knows of connections: it works with any `Client`. Everything is by key, and another key's response is one
that does not exist.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import parse_qs

import msgspec
from msgspec import Raw, Struct

from headway.api.dialect import Params
from headway.api.fields import check_size
from headway.api.responses import RESPONSE_PREFIX
from headway.api.responses_items import NOTHING_EARLIER, ContentPart, EarlierItems, InputItem
from headway.api.responses_meter import AnswerSoFar, ResponsesForm
from headway.api.sparse_log import SparseLog
from headway.errors import InvalidRequest, Refused, TooLarge
from headway.ledger.keys import Key
from headway.wire import Client, Receipt, Request, StoredAnswers

MAX_ID_CHARS = 128
MAX_REFERENCES = 1_024  # in a request
MAX_REFERABLE = 128  # items of a response
MAX_NAMED_BYTES = 8_192  # of `previous_response_id` in a request; the reader refuses what is longer
MAX_PAGE = 100
DEFAULT_PAGE = 20
JSON = b"application/json"

Page = tuple[int, bytes, bytes]
Remember = Callable[["StoredResponse"], None]
Remembered = Callable[[str], "Continued | None"]


class StoredResponse(Struct):
    input: Raw  # the items that led to the response, as the engine got them
    output: Raw  # its output, as items of an input
    response: Raw  # as the client got it


@dataclass(frozen=True, slots=True)
class Continued:
    """A response that a request continues: items that need not be read again, and items that must be, encoded."""

    earlier: EarlierItems
    others: tuple[bytes, ...]  # lists of items


class ContinuedRequest(Struct):
    """The two fields that matter here. All others are skipped, however many there are."""

    previous_response_id: Raw = Raw(b"null")
    input: Raw = Raw(b"null")


class ItemKind(Struct):
    """What tells a reference from an item."""

    type: Any = None
    id: Any = None


class NotFound(InvalidRequest):
    status = 404


_read_continued = msgspec.json.Decoder(ContinuedRequest).decode
_read_list = msgspec.json.Decoder(list[Raw]).decode
_read_kinds = msgspec.json.Decoder(list[ItemKind]).decode
_read_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_read_stored = msgspec.json.Decoder(StoredResponse).decode
_read_items = msgspec.json.Decoder(list[dict[str, Any]]).decode
_read_any = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


class StoredResponses:
    """`store` is None if the owner stores no responses."""

    def __init__(self, store: StoredAnswers | None, max_body_bytes: int) -> None:
        self._store = store
        self._max_body_bytes = max_body_bytes
        self._failures = SparseLog(logging.WARNING)

    # --- calls ---

    async def expand(
        self, body: bytes, key: Key | None, remembered: Remembered | None = None
    ) -> tuple[bytes, EarlierItems]:
        """The body with the items in front of its input that `previous_response_id` stands for, of a response that a
        connection remembers or of a stored one, and with those that its input refers to. Items that need not be read
        again are returned beside it. A body that cannot be read stays as it is: the reader says what is wrong with it.
        Raises InvalidRequest or Refused."""
        body = await self._replace_references(body, key)
        try:
            asked = _read_continued(body)
            is_small = memoryview(asked.previous_response_id).nbytes <= MAX_NAMED_BYTES
            previous = _read_any(asked.previous_response_id) if is_small else None
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return body, NOTHING_EARLIER
        items = _items_of(asked.input)
        if not isinstance(previous, str) or not items.startswith(b"["):
            return body, NOTHING_EARLIER
        continued = remembered(previous) if remembered is not None else None
        if continued is None and (stored := await self._find(previous, key)) is not None:
            continued = Continued(NOTHING_EARLIER, (bytes(stored.input), bytes(stored.output)))
        if continued is None:
            raise InvalidRequest(
                f"The response `{_shown(previous)}` is not stored. Send the whole conversation in `input`.",
                "previous_response_id",
                "previous_response_not_found",
            )
        parts = [part for part in map(_inside, (*continued.others, items)) if part]
        self._check_room(body, [continued.earlier.encoded, *parts], "previous_response_id")
        # Of two fields with a name the last one is read.
        return body.rstrip()[:-1] + b',"input":[' + b",".join(parts) + b"]}", continued.earlier

    async def _replace_references(self, body: bytes, key: Key | None) -> bytes:
        if b'"item_reference"' not in body:
            return body
        check_size(body)
        try:
            fields = _read_fields(body)
            kinds = _read_kinds(fields["input"])
            items = _read_list(fields["input"])
        except (KeyError, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return body
        wanted = {number: one.id for number, one in enumerate(kinds) if one.type == "item_reference"}
        if not wanted or not all(isinstance(item_id, str) for item_id in wanted.values()):
            return body
        if len(wanted) > MAX_REFERENCES:
            raise InvalidRequest(f"`input` refers to more than {MAX_REFERENCES} items.", "input")
        ids = sorted({item_id for item_id in wanted.values() if _is_item_id(item_id)})
        found: dict[str, bytes] = {}
        if ids and self._store is not None and key is not None:
            found = await self._store.read_many(key.hash, ids, self._max_body_bytes)
        for item_id in wanted.values():
            if item_id not in found:
                raise InvalidRequest(
                    f"The item `{_shown(item_id)}` is not stored. Send the item itself, as clients do "
                    "that are told not to `store`.",
                    "input",
                )
        parts = [found[wanted[number]] if number in wanted else bytes(item) for number, item in enumerate(items)]
        self._check_room(body, parts, "input")
        return _encode({**fields, "input": Raw(b"[%b]" % b",".join(parts))})

    def _check_room(self, body: bytes, parts: list[bytes], param: str) -> None:
        if len(body) + sum(map(len, parts)) > self._max_body_bytes:
            raise TooLarge(f"The conversation is larger than {self._max_body_bytes} bytes.", param)

    def prepare(self, request: Request, key: Key | None) -> Request:
        """The request, whose answer says whether it is stored."""
        form = request.form
        if isinstance(form, ResponsesForm) and form.store and (self._store is None or key is None):
            return replace(request, form=replace(form, store=False))
        return request

    def client_of(self, request: Request, client: Client, key: Key | None, remember: Remember | None = None) -> Client:
        """The client, or one in front of it that stores the answer first. `remember` gets it in any case, once it is
        sent and before the event loop reads what the client answers."""
        form = request.form
        if not isinstance(form, ResponsesForm) or not (form.store or remember):
            return client
        stores = form.store

        async def keep(final: bytes) -> None:
            if stores and key is not None:
                await self._keep(_stored_of(request, final), key)

        def sent(final: bytes) -> None:
            if remember is not None:
                remember(_stored_of(request, final))

        return StoringClient(client, form.so_far, keep, sent)

    async def _keep(self, stored: StoredResponse, key: Key) -> None:
        """Store a response. If that fails the client still gets it."""
        assert self._store is not None
        plain = _encode(stored)
        if len(plain) > self._store.max_bytes:
            return
        referable = {item["id"]: _encode(item) for item in _referable(stored)}
        try:
            await self._store.keep(key.hash, {_read_any(_read_fields(stored.response)["id"]): plain, **referable})
        except Refused:
            self._failures.write("a response was not stored, because the store cannot be reached")

    async def _find(self, response_id: str, key: Key | None) -> StoredResponse | None:
        if self._store is None or key is None or not _is_response_id(response_id):
            return None
        plain = await self._store.read(key.hash, response_id)
        return _read_stored(plain) if plain is not None else None

    # --- pages ---

    async def retrieve(self, params: Params, key: Key | None) -> Page:
        if parse_qs(params["query"]).get("stream", ["false"])[-1].lower() in ("true", "1"):
            raise InvalidRequest("A stored response cannot be streamed.", "stream")
        return 200, JSON, bytes((await self._found(params, key)).response)

    async def delete(self, params: Params, key: Key | None) -> Page:
        response_id = params["response_id"]
        is_there = False
        if self._store is not None and key is not None and _is_response_id(response_id):
            stored = await self._find(response_id, key)
            items = _referable(stored) if stored is not None else []
            is_there = await self._store.delete(key.hash, [response_id, *[item["id"] for item in items]])
        if not is_there:
            raise _not_found(response_id)
        return 200, JSON, _encode({"id": response_id, "object": "response", "deleted": True})

    async def cancel(self, params: Params, key: Key | None) -> Page:
        await self._found(params, key)
        raise InvalidRequest("Only a response with `background` could be cancelled, and this one is complete.")

    async def input_items(self, params: Params, key: Key | None) -> Page:
        stored = await self._found(params, key)
        query = parse_qs(params["query"])
        items = [_listed(item, params["response_id"], n) for n, item in enumerate(_read_items(stored.input))]
        if query.get("order", ["desc"])[-1] != "asc":
            items.reverse()
        after = query.get("after", [""])[-1]
        start = next((n + 1 for n, item in enumerate(items) if item["id"] == after), 0)
        limit = query.get("limit", [str(DEFAULT_PAGE)])[-1]
        size = min(max(int(limit), 1), MAX_PAGE) if limit.isascii() and limit.isdigit() else DEFAULT_PAGE
        page = items[start : start + size]
        ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
        has_more = start + size < len(items)
        return 200, JSON, _encode({"object": "list", "data": page, "has_more": has_more, **ends})

    async def _found(self, params: Params, key: Key | None) -> StoredResponse:
        stored = await self._find(params["response_id"], key)
        if stored is None:
            raise _not_found(params["response_id"])
        return stored


class StoringClient:
    """Holds back the last bytes of an answer until `keep` has stored the answer, and calls `sent` when they are
    written; implements wire.Client."""

    def __init__(
        self,
        client: Client,
        so_far: AnswerSoFar,
        keep: Callable[[bytes], Awaitable[None]],
        sent: Callable[[bytes], None],
    ) -> None:
        self._client = client
        self._so_far = so_far
        self._keep = keep
        self._sent = sent
        self._last: list[bytes] = []
        self.on_backpressure = client.on_backpressure
        self.start_stream = client.start_stream
        self.abandon = client.abandon

    @property
    def started(self) -> bool:
        return self._client.started

    async def send_whole(self, content_type: bytes, body: bytes, receipt: Receipt) -> None:
        await self._store()
        await self._client.send_whole(content_type, body, receipt)

    def write(self, data: bytes) -> None:
        if self._so_far.final is None:
            self._client.write(data)
        else:
            self._last.append(data)

    async def end_stream(self) -> None:
        await self._store()
        self._client.write(b"".join(self._last))
        if self._so_far.final is not None:
            self._sent(self._so_far.final)
        await self._client.end_stream()

    async def _store(self) -> None:
        if self._so_far.final is not None:
            await self._keep(self._so_far.final)


def _stored_of(request: Request, final: bytes) -> StoredResponse:
    output = _encode([_as_input(item) for item in _read_items(_read_fields(final)["output"])])
    return StoredResponse(input_of(request), Raw(output), Raw(final))


def input_of(request: Request) -> Raw:
    """The items of a request, as the engine gets them."""
    return Raw(_items_of(_read_fields(request.body)["input"]))


def continuing(request: Request, asked: Raw, output: Raw) -> Continued:
    """The response to a request, as the same process continues it. Its output has not been read as an input yet."""
    assert isinstance(request.form, ResponsesForm)
    return Continued(EarlierItems(_inside(asked), request.form.items, request.images), (bytes(output),))


def _items_of(raw: Raw) -> bytes:
    """An input as a list of items. What is none stays as it is."""
    encoded = bytes(raw)
    if encoded == b"null":
        return b"[]"
    return b'[{"type":"message","role":"user","content":%b}]' % encoded if encoded.startswith(b'"') else encoded


def _inside(items: bytes | Raw) -> bytes:
    """A list of items without its brackets."""
    return bytes(items).strip()[1:-1].strip()


ITEM_FIELDS = frozenset(InputItem.__struct_fields__)
PART_FIELDS = frozenset(ContentPart.__struct_fields__) - {"annotations", "logprobs"}


def _as_input(item: dict[str, Any]) -> dict[str, Any]:
    """An item of an output with what is read of it when it is sent back."""
    kept = {name: value for name, value in item.items() if name in ITEM_FIELDS and value is not None}
    for name in ("content", "summary"):
        if isinstance(kept.get(name), list):
            kept[name] = [{key: part[key] for key in PART_FIELDS & part.keys()} for part in kept[name]]
    return kept


def _referable(stored: StoredResponse) -> list[dict[str, Any]]:
    """The items of its output that a request can refer to."""
    return [item for item in _read_items(stored.output) if _is_item_id(item.get("id"))][:MAX_REFERABLE]


# Responses and items are stored side by side, and never taken for each other.
def _is_response_id(text: str) -> bool:
    return text.startswith(RESPONSE_PREFIX) and _is_id(text)


def _is_item_id(text: Any) -> bool:
    return isinstance(text, str) and not text.startswith(RESPONSE_PREFIX) and _is_id(text)


def _is_id(text: str) -> bool:
    """Not every database takes every character."""
    return 0 < len(text) <= MAX_ID_CHARS and text.isascii() and text.isprintable()


def _listed(item: dict[str, Any], response_id: str, number: int) -> dict[str, Any]:
    """An item with the fields that clients expect in a list."""
    content = item.get("content")
    if item.get("type") == "message" and isinstance(content, str):
        kind = "output_text" if item.get("role") == "assistant" else "input_text"
        more: dict[str, Any] = {"annotations": []} if kind == "output_text" else {}
        item = {**item, "content": [{"type": kind, "text": content, **more}]}
    return {"id": f"item_{response_id.removeprefix(RESPONSE_PREFIX)}_{number}", "status": "completed", **item}


def _shown(response_id: str) -> str:
    return response_id[:MAX_ID_CHARS]


def _not_found(response_id: str) -> NotFound:
    return NotFound(f"Response with id '{_shown(response_id)}' not found.", "response_id")

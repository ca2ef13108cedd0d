"""A message that continues what its socket remembers: what is read again, and what the engine gets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec import Raw

from headway.api import limits
from headway.api.images import MAX_IMAGES
from headway.api.responses_items import NOTHING_EARLIER, EarlierItems
from headway.api.responses_meter import AnswerSoFar, ResponsesForm
from headway.api.responses_store import Continued, StoredResponses, StoringClient, continuing, input_of
from headway.api.socket_messages import message_route
from headway.errors import InvalidRequest, TooLarge
from headway.wire import Grant, Receipt, Request, SentImages
from tests.image_files import data_url, png

pytestmark = pytest.mark.anyio
IMAGE = {"type": "input_image", "image_url": data_url(png(2, 2))}
CALL = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
SEEN = {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "seen"}, IMAGE]}
ANSWER = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "A cat."}]}


def message(items: Any, **more: Any) -> bytes:
    return msgspec.json.encode({"type": "response.create", "model": "m", "input": items, "user": "u", **more})


def read(body: bytes, earlier: EarlierItems = NOTHING_EARLIER) -> Request:
    return message_route(earlier).read(body, "id")


async def continue_with(items: Any, continued: Continued, max_bytes: int = 2**20) -> Request:
    body = message(items, previous_response_id="resp_1")
    return read(*await StoredResponses(None, max_bytes).expand(body, None, lambda _: continued))


@pytest.mark.parametrize(
    "asked", [["hi", "go on"], [[], []], [[CALL, SEEN], [CALL, SEEN]]], ids=["text", "none", "images"]
)
async def test_the_engine_gets_what_it_gets_of_the_whole_conversation(asked: list[Any]) -> None:
    output = [CALL, ANSWER]
    first = read(message(asked[0]))
    second = await continue_with(asked[1], continuing(first, input_of(first), Raw(msgspec.json.encode(output))))
    third = await continue_with(asked[1], continuing(second, input_of(second), Raw(msgspec.json.encode(output))))
    lists = [[{"role": "user", "content": one}] if isinstance(one, str) else one for one in asked]
    whole = read(message([*lists[0], *output, *lists[1], *output, *lists[1]]))
    assert third.body == whole.body
    assert (third.images, third.call.prompt_tokens) == (whole.images, whole.call.prompt_tokens)
    assert isinstance(third.form, ResponsesForm)
    assert isinstance(whole.form, ResponsesForm)
    assert third.form.items == whole.form.items == len(msgspec.json.decode(input_of(whole)))


async def test_what_was_read_before_is_passed_on_as_it_is() -> None:
    earlier = EarlierItems(b'{"role" : "user", "content" : "spaces"}', 1)
    request = await continue_with([], Continued(earlier, ()))
    assert bytes(input_of(request)) == b"[%b]" % earlier.encoded


async def test_the_limits_are_those_of_the_whole_conversation() -> None:
    one = b'{"role":"user","content":"x"}'
    full = Continued(EarlierItems(one, limits.MAX_MESSAGES - 1), ())
    assert await continue_with("x", full)
    with pytest.raises(InvalidRequest, match="more than 4,096 items"):
        await continue_with([ANSWER, ANSWER], full)
    images = SentImages((4,) * (MAX_IMAGES - 1), 100)
    user = {"role": "user", "content": [IMAGE]}
    pictures = Continued(EarlierItems(one, 1, images), ())
    request = await continue_with([user], pictures)
    assert (request.images.pixels, request.images.chars) == ((4,) * MAX_IMAGES, 100 + len(IMAGE["image_url"]))
    with pytest.raises(InvalidRequest, match="16 images"):
        await continue_with([user, user], pictures)
    with pytest.raises(TooLarge):
        await continue_with("x", Continued(EarlierItems(one * 10, 10), ()), max_bytes=300)


class OrderedClient:
    """Notes when it gets the bytes of an answer."""

    started = True

    def __init__(self, noted: list[str]) -> None:
        self._noted = noted

    def on_backpressure(self, _pause: Callable[[], None], _resume: Callable[[], None]) -> None: ...

    async def start_stream(self, _content_type: bytes, _grant: Grant) -> None: ...

    async def send_whole(self, _content_type: bytes, _body: bytes, _receipt: Receipt) -> None: ...

    def write(self, data: bytes) -> None:
        self._noted.append(data.decode())

    async def end_stream(self) -> None:
        self._noted.append("end")

    def abandon(self) -> None: ...


async def test_an_answer_is_stored_before_its_last_bytes_and_remembered_after_them() -> None:
    noted: list[str] = []
    so_far = AnswerSoFar()

    async def keep(_final: bytes) -> None:
        noted.append("stored")

    client = StoringClient(OrderedClient(noted), so_far, keep, lambda _final: noted.append("remembered"))
    client.write(b"first")
    so_far.final = b"{}"
    client.write(b"last")
    await client.end_stream()
    assert noted == ["first", "stored", "last", "remembered", "end"]
    noted.clear()
    so_far.final = None  # an answer that failed
    await StoringClient(OrderedClient(noted), so_far, keep, lambda _final: noted.append("remembered")).end_stream()
    assert noted == ["", "end"]

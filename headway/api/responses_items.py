"""The items of a response's input: their fields, what is checked, and what the engine gets of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import limits
from headway.api.images import Detail, Images
from headway.errors import InvalidRequest
from headway.wire import NO_IMAGES, SentImages


class ContentPart(Struct, forbid_unknown_fields=True):
    """Text or an image: the engine would fetch the URL of any other part."""

    type: Literal["input_text", "output_text", "text", "refusal", "reasoning_text", "summary_text", "input_image"]
    text: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    image_url: str | UnsetType | None = UNSET
    detail: Detail | UnsetType | None = UNSET
    # Clients send an answer's parts back unchanged. Not sent to the engine.
    annotations: Raw | UnsetType = UNSET
    logprobs: Raw | UnsetType = UNSET

    def words(self) -> str:
        found = self.refusal if self.type == "refusal" else self.text
        return found if isinstance(found, str) else ""


Content = str | Annotated[list[ContentPart], Meta(max_length=limits.MAX_PARTS)] | UnsetType | None


class InputItem(Struct, forbid_unknown_fields=True):
    """A message, a tool call, its result, or reasoning."""

    type: (
        Literal[
            "message",
            "function_call",
            "function_call_output",
            "custom_tool_call",
            "custom_tool_call_output",
            "reasoning",
        ]
        | UnsetType
    ) = UNSET
    role: Literal["user", "assistant", "system", "developer"] | UnsetType | None = UNSET
    content: Content = UNSET
    call_id: limits.ShortText | UnsetType | None = UNSET
    name: limits.ShortText | UnsetType | None = UNSET
    namespace: limits.ShortText | UnsetType | None = UNSET
    arguments: str | UnsetType | None = UNSET
    input: str | UnsetType | None = UNSET
    output: Content = UNSET
    summary: Annotated[list[ContentPart], Meta(max_length=limits.MAX_PARTS)] | UnsetType | None = UNSET
    # Clients send an answer's items back unchanged. Not sent to the engine.
    id: limits.ShortText | UnsetType | None = UNSET
    status: limits.ShortText | UnsetType | None = UNSET


@dataclass(frozen=True, slots=True)
class EarlierItems:
    """The items that a request continues and that were read with an earlier one: as the engine got them, so that a turn
    of a conversation costs what is new in it, and not what it has become."""

    encoded: bytes = b""  # without the list's brackets
    count: int = 0
    images: SentImages = NO_IMAGES


NOTHING_EARLIER = EarlierItems()

NEEDED: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
}


def check_items(items: Sequence[InputItem], earlier: EarlierItems = NOTHING_EARLIER) -> SentImages:
    """Returns all images, with the earlier ones. Raises InvalidRequest if an item lacks a field, for its images, or if
    there are too many items."""
    if earlier.count + len(items) > limits.MAX_MESSAGES:
        raise InvalidRequest(f"The conversation has more than {limits.MAX_MESSAGES:,} items.", "input")
    images = Images(earlier.images)
    for number, item in enumerate(items):
        where = f"input[{number}]"
        kind = item.type if isinstance(item.type, str) else "message"
        for field in NEEDED[kind]:
            if getattr(item, field) in (UNSET, None):
                raise InvalidRequest(f"Missing field `{field}` in `{where}` of the type `{kind}`.", f"{where}.{field}")
        places = {"content": item.role == "user", "output": kind.endswith("_output"), "summary": False}
        for name, takes_images in places.items():
            _check_parts(getattr(item, name), f"{where}.{name}", images, takes_images)
    return images.sent()


def _check_parts(parts: Content, where: str, images: Images, takes_images: bool) -> None:
    for place, part in enumerate(parts if isinstance(parts, list) else ()):
        if part.type == "input_image":
            if not takes_images:
                raise InvalidRequest("Images are taken in messages of the role `user` and in tool results only.", where)
            images.add_url(part.image_url, f"{where}[{place}].image_url")
        elif isinstance(part.image_url, str):
            raise InvalidRequest(f"`{where}[{place}]` has an `image_url`, so its type must be `input_image`.", where)


def prepare_items(items: Sequence[InputItem]) -> list[InputItem]:
    """The items without what vLLM does not take, and with what it requires. It reads a list in some kinds of results
    only, and few chat templates an image in any of them: the images of results follow in a message, as vLLM has it for
    results in Messages."""
    prepared: list[InputItem] = []
    images: list[ContentPart] = []  # of the results before
    for item in items:
        if images and not isinstance(item.output, str | list):
            prepared.append(_message_of(images))
            images = []
        if isinstance(item.output, list):
            images += [part for part in item.output if part.type == "input_image"]
            item.output = "\n".join(part.words() for part in item.output if part.type != "input_image")
        _prepare_item(item)
        prepared.append(item)
    return [*prepared, _message_of(images)] if images else prepared


def _message_of(images: list[ContentPart]) -> InputItem:
    message = InputItem(type="message", role="user", content=images)
    _prepare_item(message)
    return message


def _prepare_item(item: InputItem) -> None:
    # With a status, vLLM may take the last message for one that the model is to continue.
    item.id = item.status = UNSET
    if isinstance(item.role, str):
        item.type = "message"
    if item.type == "message" and item.role == "assistant":
        # Of several parts vLLM reads the first one only, and it fails if there is none.
        if isinstance(item.content, list):
            item.content = "".join(part.words() for part in item.content)
    elif item.type == "reasoning" and not isinstance(item.summary, list):
        item.summary = []
    for parts in (item.content, item.summary):
        for part in parts if isinstance(parts, list) else ():
            part.annotations = part.logprobs = part.detail = UNSET

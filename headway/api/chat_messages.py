"""The messages of a chat completion: text, tool calls of earlier answers, and images (api/images.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from headway.api import limits
from headway.api.images import Detail, Images
from headway.errors import InvalidRequest
from headway.wire import SentImages

IMAGE_ROLES = ("user", "tool")


class ImageUrl(Struct, forbid_unknown_fields=True):
    url: str
    detail: Detail | UnsetType | None = UNSET


class ChatPart(Struct, forbid_unknown_fields=True):
    """Text or an image: the engine would fetch the URL of any other part."""

    type: Literal["text", "refusal", "image_url"]
    text: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    image_url: ImageUrl | UnsetType | None = UNSET


class CalledFunction(Struct, forbid_unknown_fields=True):
    name: limits.ShortText
    arguments: Raw | UnsetType = UNSET


class EarlierToolCall(Struct, forbid_unknown_fields=True):
    """A tool call of an earlier answer."""

    function: CalledFunction
    id: limits.ShortText | UnsetType | None = UNSET
    type: Literal["function"] | UnsetType | None = UNSET


class ChatMessage(Struct, forbid_unknown_fields=True):
    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | Annotated[list[ChatPart], Meta(max_length=limits.MAX_PARTS)] | UnsetType | None = UNSET
    name: limits.ShortText | UnsetType | None = UNSET
    tool_calls: Annotated[list[EarlierToolCall], Meta(max_length=limits.MAX_TOOLS)] | UnsetType | None = UNSET
    tool_call_id: limits.ShortText | UnsetType | None = UNSET
    reasoning: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType | None = UNSET  # an older name of `reasoning`, which vLLM knows
    # Clients send an answer's message back unchanged; it has these fields, and they are empty.
    refusal: str | UnsetType | None = UNSET
    audio: UnsetType | None = UNSET
    function_call: UnsetType | None = UNSET


def check_images(messages: Sequence[ChatMessage]) -> SentImages:
    """Find and check the images. Leaves their URLs only: engines do not read `detail`."""
    images = Images()
    for number, message in enumerate(messages):
        for place, part in enumerate(message.content if isinstance(message.content, list) else ()):
            if part.type != "image_url" and part.image_url is UNSET:
                continue
            where = f"messages[{number}].content[{place}]"
            if part.type != "image_url":
                raise InvalidRequest(f"`{where}` has an `image_url`, so its type must be `image_url`.", f"{where}.type")
            if message.role not in IMAGE_ROLES:
                raise InvalidRequest("Images are taken in messages of the roles `user` and `tool` only.", where)
            if not isinstance(part.image_url, ImageUrl):
                raise InvalidRequest(f"Missing field `image_url` in `{where}`.", f"{where}.image_url")
            images.add_url(part.image_url.url, f"{where}.image_url.url")
            part.image_url.detail = UNSET
    return images.sent()

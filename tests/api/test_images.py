"""Images in requests: read as data in every dialect, bounded before anything is decoded, and refused by name otherwise."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec
import pytest

from headway.api import anthropic, image_files, openai, responses
from headway.api.image_files import EncodedFile, UnreadableImage, sizes_of
from headway.api.images import MAX_IMAGE_BYTES, MAX_IMAGES, count_image_tokens
from headway.errors import InvalidRequest
from headway.wire import Request
from tests.image_files import TYPES, as_base64, data_url, gif, jpeg, png, webp

SMALL = png(30, 20)
FILES: dict[str, bytes] = {
    "png": SMALL,
    "jpeg": jpeg(30, 20),
    "padded-jpeg": jpeg(30, 20, before=b"\xff\xff\xff\xe1\0\4hi"),
    "gif": gif(30, 20),
    "plain-gif": gif(30, 20, extension=b""),
    "webp": webp(30, 20),
    "webp-lossless": webp(30, 20, "VP8L"),
    "webp-lossy": webp(30, 20, "VP8 "),
}
Dialect = Callable[..., dict[str, Any]]


def chat_part(file: bytes, kind: str = "png", **more: Any) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": data_url(file, kind), **more}}


def block(file: bytes, kind: str = "png") -> dict[str, Any]:
    source = {"type": "base64", "media_type": f"image/{kind}", "data": as_base64(file)}
    return {"type": "image", "source": source}


def input_image(file: bytes, kind: str = "png", **more: Any) -> dict[str, Any]:
    return {"type": "input_image", "image_url": data_url(file, kind), **more}


PART: dict[str, Dialect] = {"chat": chat_part, "messages": block, "responses": input_image}
ROUTES = {"chat": openai.ROUTES[0], "messages": anthropic.ROUTES[0], "responses": responses.ROUTES[0]}
ROUTES |= {"count_tokens": anthropic.ROUTES[1], "input_tokens": responses.ROUTES[1]}


def read(kind: str, *content: dict[str, Any], role: str = "user", **more: Any) -> Request:
    where = "input" if ROUTES[kind].path.startswith("/v1/responses") else "messages"
    body = {"model": "m", where: [{"role": role, "content": list(content)}], **more}
    if kind == "messages":
        body["max_tokens"] = 5
    request, _ = ROUTES[kind].parse(msgspec.json.encode(body), "id", {}, refuses_unknown=False)
    return request


def sent(request: Request) -> Any:
    return msgspec.json.decode(request.body)


def refusal(kind: str, *content: dict[str, Any], **more: Any) -> str:
    with pytest.raises(InvalidRequest) as caught:
        read(kind, *content, **more)
    return caught.value.message


# --- what is taken ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("dialect", PART)
def test_an_image_is_sent_on_as_it_came(dialect: str, name: str) -> None:
    kind = next(kind for kind in TYPES if kind in name)
    part = PART[dialect](FILES[name], kind)
    request = read(dialect, {"type": "input_text" if dialect == "responses" else "text", "text": "look"}, part)
    message = sent(request)["input" if dialect == "responses" else "messages"][0]
    assert message["content"][1] == part
    assert request.images.pixels == (600,)


@pytest.mark.parametrize("dialect", ["count_tokens", "input_tokens"])
def test_images_count_where_tokens_are_counted(dialect: str) -> None:
    part = PART["messages" if dialect == "count_tokens" else "responses"](SMALL)
    request = read(dialect, part)
    assert request.images.pixels == (600,)
    assert sent(request).get("mm_payload") == ("none" if dialect == "input_tokens" else None)
    assert "mm_payload" not in sent(read(dialect))


@pytest.mark.parametrize("detail", ["auto", "low", "high", "original", None])
def test_the_engine_gets_no_detail(detail: str | None) -> None:
    assert sent(read("chat", chat_part(SMALL, detail=detail)))["messages"][0]["content"] == [chat_part(SMALL)]
    assert sent(read("responses", input_image(SMALL, detail=detail)))["input"][0]["content"] == [input_image(SMALL)]


def test_images_in_the_result_of_a_tool() -> None:
    result = {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "x"}, block(SMALL)]}
    request = read("messages", result)
    assert sent(request)["messages"][0]["content"] == [result]
    assert request.images.pixels == (600,)
    request = read("chat", chat_part(SMALL), role="tool")
    assert request.images.pixels == (600,)


def test_images_of_results_follow_the_last_result_in_a_message() -> None:
    def result(call: str, *output: dict[str, Any]) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": call, "output": list(output)}

    text = {"type": "input_text", "text": "seen"}
    items = [result("1", text, input_image(SMALL, detail="high")), result("2", input_image(SMALL)), result("3", text)]
    said = {"type": "message", "role": "user", "content": "and?"}
    custom = {**result("4", input_image(SMALL)), "type": "custom_tool_call_output"}
    request = read("responses", input=[*items, said, custom])
    assert request.images.pixels == (600, 600, 600)
    assert sent(request)["input"] == [
        {"type": "function_call_output", "call_id": "1", "output": "seen"},
        {"type": "function_call_output", "call_id": "2", "output": ""},
        {"type": "function_call_output", "call_id": "3", "output": "seen"},
        {"type": "message", "role": "user", "content": [input_image(SMALL), input_image(SMALL)]},
        said,
        {"type": "custom_tool_call_output", "call_id": "4", "output": ""},
        {"type": "message", "role": "user", "content": [input_image(SMALL)]},
    ]


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", PART)
def test_the_bytes_of_an_image_are_no_text(dialect: str) -> None:
    noise = png(280, 280, data=random.Random(0).randbytes(100_000))
    alone, with_image = read(dialect), read(dialect, PART[dialect](noise))
    assert with_image.call.prompt_tokens - alone.call.prompt_tokens < 50
    counted = count_image_tokens(with_image, 16_384)
    assert counted.call.prompt_tokens - with_image.call.prompt_tokens == 101
    assert counted.max_prompt_tokens - alone.max_prompt_tokens - 16_384 < 200
    bounded = count_image_tokens(with_image, 64)
    assert bounded.call.prompt_tokens - with_image.call.prompt_tokens == 64
    assert count_image_tokens(alone, 64) is alone


# --- what is refused -------------------------------------------------------------------------------------------------

SVG = "data:image/svg+xml;base64," + as_base64(b"<svg/>")
URLS = ["http://169.254.169.254/", "https://x/y.png", "file:///etc/passwd", "DATA:image/png;base64,AAAA", SVG, ""]
URLS += ["data:image/png,AAAA", " " + data_url(SMALL), "data:image/png;charset=x;base64,AAAA"]


@pytest.mark.parametrize("url", URLS)
def test_urls_are_not_fetched(url: str) -> None:
    assert "must be the image itself" in refusal("chat", {"type": "image_url", "image_url": {"url": url}})
    assert "must be the image itself" in refusal("responses", {"type": "input_image", "image_url": url})


def test_files_and_urls_in_messages_are_not_fetched() -> None:
    assert "does not fetch" in refusal("messages", {"type": "image", "source": {"type": "url", "url": "http://x"}})
    assert "keeps no files" in refusal("messages", {"type": "image", "source": {"type": "file", "file_id": "1"}})
    assert "must be the image itself" in refusal("responses", {"type": "input_image", "file_id": "1"})
    with pytest.raises(msgspec.ValidationError, match="enum"):
        read("messages", {"type": "image", "source": {**block(SMALL)["source"], "media_type": "image/bmp"}})


WHOLE = as_base64(SMALL)
BOMBS: dict[str, tuple[bytes, str]] = {
    "wide": (png(8001, 1, data=b"x"), "8,001 by 1 pixels"),
    "large": (png(6001, 6000, data=b"x"), "36,006,000|6,001 by 6,000"),
    "png-stated-twice": (png(1, 1, (60_000, 60_000), data=b"x"), "60,000 by 60,000"),
    "jpeg": (jpeg(65_000, 65_000), "65,000 by 65,000"),
    "jpeg-stated-twice": (jpeg(1, 1, (65_000, 65_000)), "65,000 by 65,000"),
    "gif": (gif(65_535, 65_535), "65,535 by 65,535"),
    "gif-frame": (gif(1, 1, (65_535, 65_535)), "65,535 by 65,535"),
    "webp": (webp(2**24, 2**24), "16,777,216 by"),
    "webp-lossless": (webp(16_384, 16_384, "VP8L"), "16,384 by"),
    "webp-lossy": (webp(16_383, 16_383, "VP8 "), "16,383 by"),
}
DAMAGED: dict[str, bytes] = {
    "empty": b"",
    "text": b"this is not an image, but a text",
    "tiff": b"II*\0" + bytes(60),
    "bmp": b"BM" + bytes(60),
    "cut-png": SMALL[:20],
    "png-without-size": SMALL[:8] + SMALL[33:],
    "png-without-pixels": png(0, 5, data=b"x"),
    "png-of-parts": SMALL[:33] + b"\0\0\0\0tEXt\0\0\0\0" * 600 + SMALL[33:],
    "jpeg-with-rubbish": jpeg(3, 3, before=b"\xff\xe1\0\2xx"),
    "jpeg-of-no-length": jpeg(3, 3, before=b"\xff\xe1\0\0"),
    "jpeg-of-padding": jpeg(3, 3, before=b"\xff" * 600),
    "jpeg-of-parts": jpeg(3, 3, before=b"\xff\xe1\0\2" * 600),
    "gif-empty-extension": gif(3, 3, extension=b"!\xf9\0"),
    "gif-empty-application": gif(3, 3, extension=b"!\xff\x0bNETSCAPE2.0\0"),
    "gif-with-rubbish": gif(3, 3, extension=b"x"),
    "gif-of-parts": gif(3, 3, extension=b"!\xfe" + b"\1x" * 600 + b"\0"),
    "webp-of-another-kind": webp(3, 3).replace(b"VP8X", b"VP8Y"),
}  # fmt: skip


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("dialect", PART)
def test_a_bomb_is_refused_by_what_its_header_says(dialect: str, name: str) -> None:
    file, said = BOMBS[name]
    message = refusal(dialect, PART[dialect](file))
    assert any(one in message for one in said.split("|")), message


@pytest.mark.parametrize("name", DAMAGED)
def test_what_cannot_be_read_is_refused(name: str) -> None:
    message = refusal("messages", block(DAMAGED[name]))
    assert "not an image that can be read" in message or "without pixels" in message


@pytest.mark.parametrize(
    "data", [WHOLE[:-1], WHOLE[:40] + "\n" + WHOLE[40:], WHOLE[:40] + "-_" + WHOLE[42:], "=" + WHOLE[1:], "é" + WHOLE[1:]],
    ids=["cut", "newline", "url-safe", "padding-inside", "not-ascii"],
)  # fmt: skip
def test_what_is_not_base64_is_refused(data: str) -> None:
    source = {"type": "base64", "media_type": "image/png", "data": data}
    assert "base64" in refusal("messages", {"type": "image", "source": source})


def test_wrong_base64_is_found_wherever_it_is() -> None:
    text = as_base64(png(1, 1, data=bytes(200_000)))
    for at in (0, 65_535, 65_536, len(text) // 2, len(text) - 5):
        with pytest.raises(UnreadableImage):
            EncodedFile(text[:at] + "." + text[at + 1 :]).check()
    file = EncodedFile("ab" + text, 2)
    file.check()
    assert list(sizes_of(file)) == [(1, 1)]


def test_the_number_the_bytes_and_the_pixels_of_all_images_are_bounded() -> None:
    assert read("chat", *[chat_part(SMALL)] * MAX_IMAGES).images.pixels == (600,) * MAX_IMAGES
    assert f"{MAX_IMAGES} images" in refusal("chat", *[chat_part(SMALL)] * (MAX_IMAGES + 1))
    assert "128,000,000 pixels in all" in refusal("chat", *[chat_part(png(6000, 6000, data=b"x"))] * 4)
    large = png(9, 9, data=bytes(MAX_IMAGE_BYTES))
    assert "5,242,937 bytes" in refusal("messages", block(large))
    assert read("messages", block(large[:MAX_IMAGE_BYTES])).images.pixels == (81,)


def test_an_image_where_none_is_taken_is_never_dropped() -> None:
    for role in ("system", "developer", "assistant"):
        assert "Images are taken" in refusal("chat", chat_part(SMALL), role=role)
        assert "Images are taken" in refusal("responses", input_image(SMALL), role=role)
    assert "Images are taken" in refusal("messages", block(SMALL), role="assistant")
    result = {"type": "tool_result", "tool_use_id": "1", "content": [block(SMALL)]}
    assert "Images are taken" in refusal("messages", result, role="assistant")
    assert "Images are taken" in refusal("messages", system=[block(SMALL)])
    thought = {"type": "reasoning", "summary": [input_image(SMALL)]}
    assert "Images are taken" in refusal("responses", input=[thought])
    assert "must be `image_url`" in refusal("chat", {**chat_part(SMALL), "type": "text", "text": "x"})
    assert "must be `image`" in refusal("messages", {**block(SMALL), "type": "text", "text": "x"})
    assert "must be `input_image`" in refusal("responses", {**input_image(SMALL), "type": "input_text"})
    for dialect, part in (("chat", {"type": "image_url"}), ("messages", {"type": "image"})):
        assert "Missing field" in refusal(dialect, part)
    for dialect in PART:
        assert "`image_url` is not supported" in refusal(dialect, image_url={"url": data_url(SMALL)})
    said = {"role": "user", "content": "x", "image_url": {"url": data_url(SMALL)}}
    assert "`messages.image_url` is not supported" in refusal("chat", messages=[said])
    assert "type `image_url`" in refusal("chat", block(SMALL))
    assert "type `image`" in refusal("messages", chat_part(SMALL))
    assert "type `input_image`" in refusal("responses", chat_part(SMALL))


def test_any_bytes_are_read_or_refused_in_little_time() -> None:
    dice = random.Random(0)
    for name, file in FILES.items():
        for _ in range(300):
            made = bytearray(file + dice.randbytes(dice.choice((0, 3, 3000))))
            for _ in range(dice.randint(1, 6)):
                made[dice.randrange(len(made))] = dice.randrange(256)
            encoded = EncodedFile(as_base64(bytes(made)))
            encoded.check()
            with suppress(UnreadableImage):
                assert len(list(sizes_of(encoded))) <= image_files.MAX_STEPS, name
    hostile = [jpeg(1, 1, before=b"\xff\xe1\0\2" * 10**6), gif(1, 1, extension=b"!\xfe" + b"\1x" * 10**6)]
    for file in hostile:
        encoded = EncodedFile(as_base64(file))
        began = time.thread_time()
        with pytest.raises(UnreadableImage, match="too many parts"):
            list(sizes_of(encoded))
        assert time.thread_time() - began < 0.05

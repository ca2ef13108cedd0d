"""Images in requests: as data only, and bounded in number, bytes and pixels.

An engine would fetch the image that a URL names from its own network, so URLs are refused. It decodes an image before
it scales it, so what an image takes there is known from its pixels, not from its bytes; they are read from the headers
of the file (api/image_files.py). Which models take images is set in headway.toml.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from headway.api.image_files import EncodedFile, UnreadableImage, sizes_of
from headway.errors import InvalidRequest
from headway.wire import NO_IMAGES, Request, SentImages

MAX_IMAGES = 16  # of one request
MAX_IMAGE_BYTES = 5 * 2**20
MAX_SIDE = 8_000  # pixels
MAX_PIXELS = 36_000_000
MAX_PIXELS_IN_ALL = 128_000_000  # an engine has them in memory at once, three bytes for each
# Most vision models make a token of 28 by 28 pixels, and have a limit for one image.
PIXELS_PER_TOKEN = 28 * 28

DATA_URL = re.compile(r"data:image/(?:png|jpe?g|webp|gif);base64,")
MediaType = Literal["image/png", "image/jpeg", "image/webp", "image/gif"]
# How closely the model is to look. Engines scale an image as their model needs it. Not sent to the engine.
Detail = Literal["auto", "low", "high", "original"]


class Images:
    """The images of one request, each checked when it is added. `earlier` ones were checked with another request."""

    def __init__(self, earlier: SentImages = NO_IMAGES) -> None:
        self._pixels = list(earlier.pixels)
        self._chars = earlier.chars

    def sent(self) -> SentImages:
        return SentImages(tuple(self._pixels), self._chars)

    def add_url(self, url: object, where: str) -> None:
        """An image as a data URL. Raises InvalidRequest."""
        if not isinstance(url, str) or not (start := DATA_URL.match(url)):
            raise InvalidRequest(
                f"`{where}` must be the image itself, as `data:image/png;base64,...` (or jpeg, webp, gif): Headway "
                "does not fetch URLs or files. Only models that take images accept it.",
                where,
            )
        self.add_data(url, where, start.end())

    def add_data(self, text: str, where: str, start: int = 0) -> None:
        """An image as base64 that begins at `start`. Raises InvalidRequest."""
        if len(self._pixels) >= MAX_IMAGES:
            raise InvalidRequest(f"A request may have {MAX_IMAGES} images: leave out the oldest ones.", where)
        try:
            file = EncodedFile(text, start)
            if file.size > MAX_IMAGE_BYTES:
                raise InvalidRequest(
                    f"`{where}` has {file.size:,} bytes. An image may have {MAX_IMAGE_BYTES:,}: scale it down.", where
                )
            file.check()
            sizes = list(sizes_of(file))
        except UnreadableImage as error:
            raise InvalidRequest(f"`{where}` is not an image that can be read: {error}.", where) from None
        pixels = _pixels(sizes, where)
        if sum(self._pixels) + pixels > MAX_PIXELS_IN_ALL:
            raise InvalidRequest(
                f"The images of a request may have {MAX_PIXELS_IN_ALL:,} pixels in all: scale them down.", where
            )
        self._pixels.append(pixels)
        self._chars += len(text)


def _pixels(sizes: list[tuple[int, int]], where: str) -> int:
    if not sizes or min(min(size) for size in sizes) < 1:
        raise InvalidRequest(f"`{where}` is an image without pixels.", where)
    width, height = max(width for width, _ in sizes), max(height for _, height in sizes)
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise InvalidRequest(
            f"`{where}` has {width:,} by {height:,} pixels. An image may have {MAX_PIXELS:,}, and {MAX_SIDE:,} on a "
            "side: scale it down.",
            where,
        )
    return width * height


def count_image_tokens(request: Request, most: int) -> Request:
    """The request, with the tokens of its images: estimated in its call, and at most `most` for each."""
    images, call = request.images, request.call
    if not images.pixels:
        return request
    tokens = sum(min(most, 1 + pixels // PIXELS_PER_TOKEN) for pixels in images.pixels)
    return replace(
        request,
        call=replace(call, prompt_tokens=call.prompt_tokens + tokens),
        images=replace(images, max_tokens=most * len(images.pixels)),
    )

"""Reads how large an image is from the headers of its file: PNG, JPEG, GIF and WebP. Nothing is decompressed.

A file can state its size more than once, and decoders differ in which statement they believe. So all that come before
the first pixels are read, and a file whose structure leaves room for two readings is refused. Only the parts that are
looked at are decoded from base64.
"""

from __future__ import annotations

import struct
from binascii import a2b_base64
from collections.abc import Iterator

MAX_STEPS = 512  # parts of a file before its pixels; photographs with all their metadata have fewer than 100
CHECKED_CHARS = 64 * 1024  # at a time
ALPHABET = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"

PNG, GIF = b"\x89PNG\r\n\x1a\n", (b"GIF87a", b"GIF89a")
JPEG = b"\xff\xd8\xff"
SIZE_MARKERS = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC} | {0xDE}  # start of a frame
SCAN_MARKER = 0xDA
# Markers of other parts that have a length: tables, application data, comments.
OTHER_MARKERS = frozenset({0xC4, 0xCC, 0xDB, 0xDC, 0xDD, 0xDF, 0xFE, *range(0xE0, 0xF0)})
APPLICATION_LABEL = 0xFF  # of an extension in a GIF

Size = tuple[int, int]  # width and height


class UnreadableImage(Exception):
    """It is not base64, or not an image of a type that is read here."""


class EncodedFile:
    """A file as base64 text that begins at `start`. Check it before it is read. Both raise UnreadableImage."""

    def __init__(self, text: str, start: int = 0) -> None:
        self._text, self._start = text, start
        chars, padding = len(text) - start, 2 if text.endswith("==") else int(text.endswith("="))
        if chars % 4 or chars < 4:
            raise UnreadableImage("its base64 is cut off, or has no padding")
        self.size = chars // 4 * 3 - padding
        self._end = len(text) - padding

    def check(self) -> None:
        """Look at all of it, without a copy of all of it. Decoding it would take five times as long."""
        for at in range(self._start, self._end, CHECKED_CHARS):
            piece = self._text[at : min(at + CHECKED_CHARS, self._end)]
            if piece.encode().translate(None, ALPHABET):
                raise UnreadableImage("it is not base64")

    def at(self, position: int, length: int) -> bytes:
        """Raises UnreadableImage beyond the end."""
        first, last = position // 3 * 4, -(-(position + length) // 3) * 4
        decoded = a2b_base64(self._text[self._start + first : self._start + last])
        found = decoded[position % 3 : position % 3 + length]
        if len(found) < length:
            raise UnreadableImage("its file is cut off")
        return found


def sizes_of(file: EncodedFile) -> Iterator[Size]:
    """Every size that the file states before its first pixels. Raises UnreadableImage."""
    head = file.at(0, 16)
    if head.startswith(PNG):
        return _sizes_of_png(file)
    if head.startswith(JPEG):
        return _sizes_of_jpeg(file)
    if head.startswith(GIF):
        return _sizes_of_gif(file)
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return iter([_size_of_webp(file, head[12:16])])
    raise UnreadableImage("its data is not PNG, JPEG, WebP or GIF")


def _sizes_of_png(file: EncodedFile) -> Iterator[Size]:
    at = len(PNG)
    for _ in range(MAX_STEPS):
        length, name = struct.unpack(">I4s", file.at(at, 8))
        if name == b"IDAT":
            return
        if name == b"IHDR":
            yield struct.unpack(">II", file.at(at + 8, 8))
        at += 12 + length
    raise UnreadableImage("it has too many parts before its pixels")


def _sizes_of_jpeg(file: EncodedFile) -> Iterator[Size]:
    at = 2
    for _ in range(MAX_STEPS):
        start, marker, length = struct.unpack(">BBH", file.at(at, 4))
        if (start, marker) == (0xFF, 0xFF):  # padding
            at += 1
            continue
        if start != 0xFF or marker not in SIZE_MARKERS | OTHER_MARKERS | {SCAN_MARKER} or length < 2:
            raise UnreadableImage("its JPEG data is damaged")
        if marker == SCAN_MARKER:
            return
        if marker in SIZE_MARKERS:
            height, width = struct.unpack(">HH", file.at(at + 5, 4))
            yield width, height
        at += 2 + length
    raise UnreadableImage("it has too many parts before its pixels")


def _sizes_of_gif(file: EncodedFile) -> Iterator[Size]:
    width, height, flags = struct.unpack("<HHB", file.at(6, 5))
    yield width, height
    at = 13 + (3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0)
    # Blocks of the extension that is being skipped; None between extensions.
    blocks, needed = None, 1
    for _ in range(MAX_STEPS):
        if blocks is not None:
            length = file.at(at, 1)[0]
            at += 1 + length
            if length:
                blocks += 1
            elif blocks < needed:  # decoders would go on to look for blocks
                raise UnreadableImage("its GIF data is damaged")
            else:
                blocks = None
            continue
        kind, label = file.at(at, 2)
        if kind == ord(","):
            left, top, width, height = struct.unpack("<HHHH", file.at(at + 1, 8))
            yield left + width, top + height  # decoders enlarge the image to the frame
            return
        if kind != ord("!"):
            raise UnreadableImage("its GIF data is damaged")
        blocks, needed = 0, 2 if label == APPLICATION_LABEL else 1
        at += 2
    raise UnreadableImage("it has too many parts before its pixels")


def _size_of_webp(file: EncodedFile, kind: bytes) -> Size:
    if kind == b"VP8X":
        low_w, high_w, low_h, high_h = struct.unpack("<HBHB", file.at(24, 6))
        return (high_w << 16 | low_w) + 1, (high_h << 16 | low_h) + 1
    if kind == b"VP8L" and file.at(20, 1) == b"\x2f":
        [bits] = struct.unpack("<I", file.at(21, 4))
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1
    if kind == b"VP8 " and file.at(23, 3) == b"\x9d\x01\x2a":
        width, height = struct.unpack("<HH", file.at(26, 4))
        return width & 0x3FFF, height & 0x3FFF
    raise UnreadableImage("its WebP data is damaged")

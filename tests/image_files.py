"""Makes the files of images for tests: whole PNGs, and of the other formats what comes before the pixels."""

from __future__ import annotations

import base64
import struct
import zlib

TYPES = ("png", "jpeg", "gif", "webp")


def png(width: int, height: int, *more: tuple[int, int], data: bytes = b"") -> bytes:
    """A picture of one colour if `data` is empty. `more` are sizes that it states after the first one."""
    rows = data or zlib.compress((b"\0" + b"\x50\x90\xd0" * width) * height)
    headers = [struct.pack(">IIBBBBB", *size, 8, 2, 0, 0, 0) for size in ((width, height), *more)]
    chunks = [*[(b"IHDR", header) for header in headers], (b"IDAT", rows), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def jpeg(width: int, height: int, *more: tuple[int, int], before: bytes = b"\xff\xfe\0\4hi") -> bytes:
    """`before` are segments in front of the size."""
    sizes = [struct.pack(">BBHBHHB", 0xFF, 0xC0, 8, 8, h, w, 0) for w, h in ((width, height), *more)]
    return b"\xff\xd8" + before + b"".join(sizes) + b"\xff\xda\0\2"


def gif(
    width: int,
    height: int,
    frame: tuple[int, int] | None = None,
    extension: bytes = b"!\xf9\4\0\0\0\0\0!\xff\x0bNETSCAPE2.0\3\1\0\0\0",
) -> bytes:
    screen = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + b"\0\0\0\xff\xff\xff"
    image = b"," + struct.pack("<HHHHB", 0, 0, *(frame or (width, height)), 0) + b"\2\2\x44\1\0;"
    return b"GIF89a" + screen + extension + image


def webp(width: int, height: int, kind: str = "VP8X") -> bytes:
    chunks = {
        "VP8X": lambda: bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
        "VP8L": lambda: b"\x2f" + struct.pack("<I", width - 1 | height - 1 << 14),
        "VP8 ": lambda: b"\0\0\0\x9d\x01\x2a" + struct.pack("<HH", width, height),
    }
    chunk = chunks[kind]()
    return (
        b"RIFF" + struct.pack("<I", 12 + len(chunk)) + b"WEBP" + kind.encode() + struct.pack("<I", len(chunk)) + chunk
    )


def as_base64(file: bytes) -> str:
    return base64.b64encode(file).decode()


def data_url(file: bytes, kind: str = "png") -> str:
    return f"data:image/{kind};base64,{as_base64(file)}"

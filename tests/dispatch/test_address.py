from __future__ import annotations

from pathlib import Path

import pytest

from headway.dispatch.address import Address, TcpAddress, UnixAddress, parse_address
from headway.errors import SetupError

GOOD: dict[str, Address] = {
    "unix:/run/headway/dispatcher": UnixAddress(Path("/run/headway/dispatcher")),
    "tcp://dispatcher:7000": TcpAddress("dispatcher", 7000),
    "tcp://127.0.0.1:7000": TcpAddress("127.0.0.1", 7000),
    "tcp://[::1]:7000": TcpAddress("::1", 7000),
}
BAD = [
    "",
    "dispatcher:7000",
    "http://dispatcher:7000",
    "tcp://dispatcher",
    "tcp://dispatcher:0",
    "tcp://dispatcher:70000",
    "tcp://dispatcher:port",
    "tcp://:7000",
    "tcp://::1:7000",
    "tcp://[::1:7000",
    "tcp://dispatcher:7000/path",
    "tcp://dispatcher:7000?query",
    "tcp://dispatcher:7000#part",
    "tcp://user@dispatcher:7000",
    "tcp://" + "a" * 64 + ":7000",
    "tcp:// dispatcher:7000",
    "unix:",
    "unix:/run/",
    "unix:/run/\0",
    "unix:/" + "a" * 107,
]


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_read_and_written(text: str) -> None:
    address = parse_address(text)
    assert address == GOOD[text]
    assert str(address) == text


@pytest.mark.parametrize("text", BAD, ids=range(len(BAD)))
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(SetupError, match=r"unix:PATH|shorter"):
        parse_address(text)

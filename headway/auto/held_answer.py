"""A client that holds an answer back until it has been weighed or compared: wire.Client, for whole answers only."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from headway.wire import Client, Grant, Receipt


@dataclass
class HeldAnswer:
    started: bool = False
    body: bytes = b""

    async def send_whole(self, _content_type: bytes, body: bytes, _receipt: Receipt) -> None:
        self.started, self.body = True, body

    async def start_stream(self, _content_type: bytes, _grant: Grant) -> None:
        raise NotImplementedError("a held answer is asked for in one piece")

    def write(self, _data: bytes) -> None:
        raise NotImplementedError("a held answer is asked for in one piece")

    def on_backpressure(self, _pause: Callable[[], None], _resume: Callable[[], None]) -> None:
        pass

    async def end_stream(self) -> None:
        pass

    def abandon(self) -> None:
        pass


async def deliver(client: Client, whole: bytes, receipt: Receipt, *, is_stream: bool) -> None:
    """Send a held answer to its client: `whole` is the answer in one piece, or all events of its stream."""
    if not is_stream:
        await client.send_whole(b"application/json", whole, receipt)
        return
    await client.start_stream(b"text/event-stream; charset=utf-8", receipt.grant)
    client.write(whole)
    await client.end_stream()

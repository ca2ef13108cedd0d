"""What is done to a process of the cell, whatever it is."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress

from runs.failover.cell import Member

READY_S, AGAIN_S, ANSWER_S = 60.0, 0.3, 2.0
READY = b"GET /ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n"


async def stand(member: Member, for_s: float) -> None:
    member.signal(signal.SIGSTOP)
    try:
        await asyncio.sleep(for_s)
    finally:
        member.signal(signal.SIGCONT)


async def start_until_listening(member: Member) -> None:
    """As a service manager does: a process that ends by itself, such as one that finds its configuration broken, is
    started again."""
    deadline = time.monotonic() + READY_S
    member.start()
    while not await answers(member, b"", b""):
        if member.ended_by_itself():
            await asyncio.sleep(AGAIN_S)
            member.start()
        if time.monotonic() > deadline:
            raise SystemExit(f"{member.name} does not start: see its log in the run's folder")
        await asyncio.sleep(0.05)


async def start_until_ready(relay: Member) -> None:
    """A relay is ready only while a dispatcher leads, which other faults may delay."""
    await start_until_listening(relay)
    deadline = time.monotonic() + READY_S
    while not await answers(relay, READY, b" 200") and time.monotonic() < deadline:
        await asyncio.sleep(0.05)


async def answers(member: Member, request: bytes, status: bytes) -> bool:
    with suppress(OSError, asyncio.IncompleteReadError):
        async with asyncio.timeout(ANSWER_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", member.port)
            try:
                writer.write(request)
                return not request or status in await reader.readexactly(12)
            finally:
                writer.transport.abort()
    return False

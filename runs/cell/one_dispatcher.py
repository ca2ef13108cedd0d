"""A dispatcher as a process of its own, for a number of replicas. Arguments: its UNIX socket, replicas, relays; `echo`
for one that does not decide, but boards every call at once: what the link costs without core."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from pathlib import Path

import uvloop

from headway.core.curve import Curve
from headway.core.machine import Machine
from headway.core.types import (
    Arrived,
    Board,
    Finished,
    ModelPolicy,
    Replica,
    Settled,
    Tier,
    TierPolicy,
    own_pools,
)
from headway.deciding import DISPATCHER_GC_THRESHOLDS
from headway.dispatch.address import UnixAddress
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.endpoints import listen
from headway.dispatch.fleet import Member
from headway.dispatch.frames import Events, FromRelay, Hello, Welcome
from headway.dispatch.link import Link

MODEL, SEATS = "m", 64
CURVE = Curve(a=0.008, c=0.0003, d=0.0)
TIERS: dict[Tier, TierPolicy] = {
    "fast": TierPolicy(10_000, 5.0, floor_tps=74.0),
    "standard": TierPolicy(100_000, 30.0),
    "flex": TierPolicy(100_000, 600.0),
}


def replica(number: int) -> Replica:
    return Replica(f"http://10.{number >> 16}.{number >> 8 & 255}.{number & 255}:8000", MODEL, SEATS, CURVE, 50_000.0)


def relay_name(number: int) -> str:
    return f"relay-{number}"


class Echo:
    """Boards every call at once."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def on_message(self, message: FromRelay) -> None:
        if isinstance(message, Hello):
            self._link.send(Welcome(1, "", 1.0, ""))
        elif isinstance(message, Events):
            for event in message.events:
                if isinstance(event, Arrived):
                    self._link.act(Board(event.call.id, "r", event.call.tier))
                elif isinstance(event, Finished):
                    self._link.act(Settled(event.call_id, 0))

    def on_lost(self, reason: str) -> None:
        pass


async def echo(path: Path) -> None:
    listener = await listen(UnixAddress(path), Echo, None)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    await told.wait()
    await listener.close()


async def serve(path: Path, replicas: int, relays: int) -> None:
    machine = Machine(*own_pools({MODEL: ModelPolicy(TIERS, standard_share=0.5)}))
    fleet = [Member(replica(number), "vllm") for number in range(replicas)]
    dispatcher = Dispatcher(machine, fleet, 1, "", [relay_name(number) for number in range(relays)])
    listener = await listen(UnixAddress(path), dispatcher.make_session, None)
    ticking = asyncio.create_task(dispatcher.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ticking.cancel)
    gc.freeze()
    gc.set_threshold(*DISPATCHER_GC_THRESHOLDS)
    await asyncio.gather(ticking, return_exceptions=True)
    dispatcher.close()
    await listener.close()


if __name__ == "__main__":
    where = Path(sys.argv[1])
    uvloop.run(echo(where) if sys.argv[4:] == ["echo"] else serve(where, int(sys.argv[2]), int(sys.argv[3])))

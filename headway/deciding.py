"""Builds whoever decides from a configuration: core for one gateway, or a dispatcher for many relays.

Apart from run.py, so that a dispatcher that has died is started again without what only gateways import.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Iterable
from pathlib import Path

from headway.config import Config
from headway.config.to_core import policy_of, replica_of
from headway.core.machine import Machine
from headway.core.types import Offer, PoolPolicy, own_pools
from headway.dispatch.address import UnixAddress
from headway.dispatch.dispatcher import Dispatcher
from headway.dispatch.endpoints import listen
from headway.dispatch.local import LocalDispatch
from headway.dispatch.pages import MetricPages
from headway.dispatch.record import EventLog
from headway.gateway.metrics import Metrics
from headway.supervise import Supervisor, measure_lag

DISPATCHER = "dispatcher"

# The objects of an ended call refer to each other, so only a full garbage collection frees them. Python makes one after
# about 77,000 new objects; until then they are memory that grows with every new maximum. Once the objects of the start
# are frozen, a full collection is short, so one is made after about 8,000.
GC_THRESHOLDS = (700, 5, 1)


def policies_of(config: Config) -> tuple[dict[str, PoolPolicy], dict[str, Offer]]:
    """The arguments of core's Machine."""
    pools, offers = own_pools({model.name: policy_of(model) for model in config.models if model.replicas_of is None})
    for model in config.models:
        if model.replicas_of is not None:
            offers[model.name] = Offer(model.replicas_of, policy_of(model).tiers)
    return pools, offers


def decide_here(config: Config, record_to: Path | None = None) -> LocalDispatch:
    pools, offers = policies_of(config)
    return LocalDispatch(Machine(pools, offers), EventLog(record_to, pools, offers) if record_to else None)


def make_dispatcher(
    config: Config, text: str, epoch: int, listed: Iterable[str], record_to: Path | None = None
) -> Dispatcher:
    """`text` is the configuration as it is written, `listed` the names of the relays that there are."""
    pools, offers = policies_of(config)
    record = EventLog(record_to, pools, offers) if record_to else None
    fleet = [replica_of(model, replica, name=replica.url) for model in config.models for replica in model.replicas]
    return Dispatcher(Machine(pools, offers), fleet, epoch, text, listed, record)


async def run_dispatcher(
    config: Config,
    text: str,
    address: UnixAddress,
    epoch: int,
    listed: Iterable[str],
    record_to: Path | None,
    on_listening: Callable[[], None],
) -> None:
    """Decide for relays until SIGTERM. `text` is the configuration as it is written, `listed` the names of the relays
    that there are."""
    dispatcher = make_dispatcher(config, text, epoch, listed, record_to)
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    supervisor = Supervisor()
    metrics = Metrics(dispatcher.metrics, supervisor)
    pages = MetricPages(address.path.parent, DISPATCHER, metrics.page)
    listener = await listen(address, dispatcher.make_session, None)
    await pages.start()
    tasks = [
        supervisor.start("dispatcher", dispatcher.run, matters=True),
        supervisor.start("loop lag", lambda: measure_lag(metrics.loop_lag.observe)),
    ]
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    on_listening()
    await told.wait()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await listener.close()
    await pages.stop()
    dispatcher.close()

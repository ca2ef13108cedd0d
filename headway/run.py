"""Builds a running gateway from a configuration: config -> core, engines -> gateway -> app -> server."""

from __future__ import annotations

import asyncio
import gc
import logging
import re
import secrets
import socket
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import uvloop
from prometheus_client.core import Metric

from headway import __version__
from headway.api.admin import AdminPages
from headway.api.app import METRICS_TYPE, App
from headway.api.openai import read_chat
from headway.api.pages import Page, PageRoute
from headway.api.server import Server, drain_on_signals, make_server
from headway.auto.audits import Audits, MemoryAudits, StoredAudits
from headway.auto.calibration import calibration_id, closed_file, read_calibration
from headway.auto.live_gate import GateSettings, LiveGate
from headway.auto.risk import limit_of
from headway.auto.serve import Auto
from headway.config import AutoTable, Config, KeepPromptsTable, LedgerTable, ModelTable, from_text
from headway.config.cell_table import RELAY_NAME
from headway.config.to_core import hosted_prices_in, prices_in
from headway.console.pages import ConsolePages
from headway.core.trust import TrustPolicy
from headway.core.types import Tier
from headway.deciding import GC_THRESHOLDS, decide_here, policies_of
from headway.dispatch.address import Address, UnixAddress
from headway.dispatch.base import Dispatch, ServedConfig
from headway.dispatch.pages import MetricPages
from headway.dispatch.remote import RemoteDispatch
from headway.dispatch.security import Security
from headway.engine_making import EngineMaker, check_engines
from headway.errors import SetupError
from headway.gateway.billing import Billing
from headway.gateway.held_bytes import HeldBytes
from headway.gateway.prompts import Keeping, PromptFile
from headway.gateway.serve import Gateway
from headway.gateway.timing import Timing
from headway.ledger.audits import AuditStore
from headway.ledger.books import Books, BooksSettings
from headway.ledger.identity import shared_name
from headway.ledger.opening import open_store
from headway.ledger.responses import ResponseLimits, ResponseStore
from headway.ledger.usage import KeyUsage
from headway.live import LiveConfig, RelayConfig
from headway.observe.opening import open_observer

log = logging.getLogger("headway")


def make_gateway(
    config: Config, dispatch: Dispatch, books: Books | None = None, engines: EngineMaker | None = None
) -> Gateway:
    timing = Timing(config.gateway.probe_interval_s, config.gateway.stall_s, config.gateway.reader_stall_s)
    prompts = {model.name: PromptFile(keeping_of(model.keep_prompts)) for model in config.models if model.keep_prompts}
    held_bytes = HeldBytes(config.gateway.max_held_bytes_per_key, config.gateway.max_held_bytes)
    check_engines(config)  # before anything is started
    engines = engines or EngineMaker(config, books)
    billing = Billing(books, prices_in(config), hosted_prices_in(config))
    observer = open_observer(config.gateway.access_log, config.gateway.otlp_endpoint, __version__)
    return Gateway(dispatch, engines.make, timing, billing, prompts, held_bytes, observer)


def keeping_of(table: KeepPromptsTable) -> Keeping:
    return Keeping(Path(table.file), table.share, table.max_mb * 1_000_000, frozenset(table.keys))


def make_auto(config: Config, gateway: Gateway, audited_as: str | None = None) -> Auto:
    """Audits are kept in the name of this gateway, or in that of the whole cell, `audited_as`."""
    settings = [gate_of(model, model.auto) for model in config.models if model.auto is not None]
    store = audit_store_of(config, gateway.books, audited_as) if settings else None
    gates = {}
    for one in settings:
        audits: Audits = MemoryAudits()
        if store is not None:
            audits = StoredAudits(store, one.model, calibration_id(one.calibration))
        gates[one.model] = LiveGate(one, audits, read_chat, gateway.metrics, gateway.dispatch.gates)
    return Auto(gateway.handle, gates, gateway.price_of, gateway.metrics, store)


def audit_store_of(config: Config, books: Books | None, name: str | None) -> AuditStore | None:
    if books is None or config.ledger is None:
        log.warning("Without a [ledger], audits of auto models are in memory only: a restart forgets them.")
        return None
    url = config.ledger.store
    return AuditStore(lambda: open_store(url), name or books.spool.identity.name, books.secret)


def gate_of(model: ModelTable, auto: AutoTable) -> GateSettings:
    path = Path(auto.calibration)
    fix = f"Write it with `headway auto calibrate TASKS --model {model.name} --out {path}`."
    try:
        calibration = read_calibration(path)
    except SetupError as error:
        raise SetupError(f"{error.message} {fix}") from error
    if (calibration.student, calibration.full) != (model.student_name, model.name):
        wanted = f"{model.student_name!r} and {model.name!r}"
        found = f"{calibration.student!r} and {calibration.full!r}"
        raise SetupError(f"{path} was calibrated for {found}, not for {wanted}. {fix}")
    closed = closed_file(path)
    budgets = list(dict.fromkeys([auto.budget, *auto.budgets.values()]))
    policy = TrustPolicy(
        [limit_of(calibration.judged, budget, auto.audit_share_of(budget)) for budget in budgets],
        {key: budgets.index(budget) for key, budget in auto.budgets.items()},
        auto.max_waiting_audits,
        auto.free_text,
        closed.exists(),
    )
    audit_tier: Tier = "flex" if any(tier.name == "flex" for tier in model.tiers) else "standard"
    return GateSettings(model.auto_name, calibration, policy, closed, audit_tier)


def make_books(config: Config) -> Books | None:
    ledger = config.ledger
    if ledger is None:
        return None
    settings = BooksSettings(Path(ledger.spool), ledger.spool_bytes, ledger.key_cache_s, ledger.secret_file)
    return Books(settings, lambda: open_store(ledger.store))


def make_response_store(config: Config, books: Books | None) -> ResponseStore | None:
    ledger, table = config.ledger, config.responses
    if books is None or ledger is None or not table.store:
        return None
    limits = ResponseLimits(round(table.keep_days * 86_400e6), table.max_response_bytes, table.max_bytes_per_key)
    return ResponseStore(lambda: open_store(ledger.store), books.secret, limits)


def make_gateway_server(
    config: Config,
    gateway: Gateway,
    auto: Auto,
    responses: ResponseStore | None = None,
    pages: MetricPages | None = None,
    live: LiveConfig | RelayConfig | None = None,
) -> tuple[Server, App]:
    books = gateway.books

    async def metrics_page() -> Page:
        return 200, METRICS_TYPE, gateway.metrics.page() if pages is None else await pages.merged()

    async def families() -> Iterable[Metric]:
        return gateway.metrics.registry.collect() if pages is None else await pages.families()

    reader = books.reader if books is not None else None
    operating: list[tuple[str, str, PageRoute]] = []
    if live is not None:
        operating += AdminPages(live).routes()
        operating += ConsolePages(__version__, live, families, auto.open_gates, reader).routes()
    app = App(
        config,
        handle=gateway.handle,
        handle_auto=auto.handle,
        is_ready=gateway.is_ready,
        metrics_page=metrics_page,
        max_model_lens=gateway.max_model_lens,
        find_key=books.find_key if books is not None else None,
        salt=books.salt if books is not None else None,
        usage_page=KeyUsage(reader).page if reader is not None else None,
        response_store=responses,
        pages=operating,
        tell_refused=gateway.tell_refused,
    )
    gateway.metrics.sockets.read_counts = app.sockets.counts
    server = make_server(
        app,
        host=config.gateway.host,
        port=config.gateway.port,
        drain_timeout_s=config.gateway.drain_timeout_s,
        max_connections=config.gateway.max_connections,
        keep_alive_s=config.gateway.keep_alive_s,
    )
    return server, app


async def run_gateway(
    config: Config,
    record_to: Path | None = None,
    on_listening: Callable[[int], None] | None = None,
    source: Path | None = None,
) -> int:
    """Decide and serve in this process until SIGTERM or SIGINT. Returns the exit code, as `serve_calls`. If `source` is
    given, it is the file that the configuration is from, and is read again when it has changed."""
    dispatch = decide_here(config, record_to)
    return await serve_calls(config, dispatch, on_listening, LiveConfig(config, dispatch, source))


async def serve_calls(
    config: Config,
    dispatch: Dispatch,
    on_listening: Callable[[int], None] | None,
    live: LiveConfig | RelayConfig,
    sockets: list[socket.socket] | None = None,
    pages_at: tuple[Path, str] | None = None,
    audited_as: str | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT. Returns the exit code: 0 if every call was served to its end, else 1. `live`
    changes the configuration meanwhile.

    One of several processes serves on `sockets` that it has inherited, shares its metrics with the others in a
    directory under its name, `pages_at`, and keeps its audits under a name that they share, `audited_as`."""
    books = make_books(config)
    engines = EngineMaker(config, books)
    gateway = make_gateway(config, dispatch, books, engines)
    auto = make_auto(config, gateway, audited_as)
    responses = make_response_store(config, books)
    pages = MetricPages(*pages_at, gateway.metrics.page) if pages_at is not None else None
    server, app = make_gateway_server(config, gateway, auto, responses, pages, live)
    server.on_listening = on_listening
    drain_on_signals(server, gateway, config.gateway.unready_s)
    if books is not None:
        await books.start(gateway.supervisor)
    if responses is not None:
        responses.start(gateway.supervisor)
    if pages is not None:
        await pages.start()
    live.start(gateway, app, engines)
    gateway.start()
    auto.start(gateway.supervisor)
    # The objects that exist now stay. Unless they are frozen, each full garbage collection scans them, and no stream
    # moves meanwhile.
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        await server.serve(sockets)
    except SystemExit:  # uvicorn raises this if it cannot bind
        where = f"{config.gateway.host}:{config.gateway.port}"
        raise SetupError(f"Cannot listen on {where}: the port may be in use. Choose another port.") from None
    finally:
        live.stop()
        await auto.stop()
        await gateway.stop()
        if pages is not None:
            await pages.stop()
        if responses is not None:
            await responses.stop()
        if books is not None:
            await books.stop()
    return 1 if server.cut_calls else 0


@dataclass(frozen=True)
class RelayPlace:
    """Who a relay is, and whom it obeys."""

    name: str
    dispatchers: list[Address]
    security: Security
    host: str | None = None  # where it listens, if not as configured
    port: int | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(RELAY_NAME, self.name):
            raise SetupError(f"{self.name!r} cannot be the name of a relay: use letters, digits and `-`, at most 64.")

    def own_config(self, config: Config) -> Config:
        """Of the configuration of all relays, that of this one: where it listens, and its own spool and files."""
        listens = {"host": self.host, "port": self.port}
        gateway = config.gateway.model_copy(update={key: one for key, one in listens.items() if one is not None})
        models = [relay_model(model, self.name) for model in config.models]
        ledger = relay_ledger(config.ledger, self.name)
        return config.model_copy(update={"ledger": ledger, "gateway": gateway, "models": models})


async def run_relay(
    text: str, place: RelayPlace, sockets: list[socket.socket] | None, on_listening: Callable[[], None]
) -> int | None:
    """Serve calls until SIGTERM, with seats from the dispatcher. `text` is the configuration as a dispatcher sends it.

    Returns the exit code, or None if the dispatcher has one that needs a restart: then the relay has ended its streams
    and must be started again with that one."""
    config = from_text(text)
    live = RelayConfig(config, place.own_config)
    served = ServedConfig(text, policies_of(config)[1])
    run = secrets.token_hex(8)
    dispatch = RemoteDispatch(place.dispatchers, place.security, place.name, run, served, live.take)
    live.dispatch = dispatch
    first = place.dispatchers[0]
    pages_at = (first.path.parent, place.name) if isinstance(first, UnixAddress) else None
    audited_as = audits_name(config, is_one_box=sockets is not None)
    own = place.own_config(config)
    code = await serve_calls(own, dispatch, lambda _port: on_listening(), live, sockets, pages_at, audited_as)
    return None if live.needs_restart else code


def audits_name(config: Config, *, is_one_box: bool) -> str | None:
    """The name under which all relays keep their audits. On one box it is that of a gateway alone with this spool."""
    if config.cell is not None and not is_one_box:
        return f"cell-{config.cell.name}"
    return shared_name(Path(config.ledger.spool)) if config.ledger is not None else None


def relay_model(model: ModelTable, name: str) -> ModelTable:
    """Each relay keeps prompts in a file of its own: whoever writes a file counts its size."""
    if (keeping := model.keep_prompts) is None:
        return model
    return model.model_copy(update={"keep_prompts": keeping.model_copy(update={"file": f"{keeping.file}.{name}"})})


def relay_ledger(ledger: LedgerTable | None, name: str) -> LedgerTable | None:
    """Each relay has a spool of its own; the secret is the same for all."""
    if ledger is None:
        return None
    return ledger.model_copy(update={"spool": str(Path(ledger.spool) / name), "secret": str(ledger.secret_file)})


@asynccontextmanager
async def running_gateway(
    config: Config,
    record_to: Path | None = None,
    relay: tuple[RemoteDispatch, RelayConfig] | None = None,
    source: Path | None = None,
) -> AsyncIterator[tuple[Gateway, int]]:
    """Run a gateway on the current event loop: one that decides for itself, or a relay. Yields the gateway and its
    port. `source` as for `run_gateway`."""
    if relay is not None:
        dispatch: Dispatch = relay[0]
        live: LiveConfig | RelayConfig = relay[1]
    else:
        dispatch = local = decide_here(config, record_to)
        live = LiveConfig(config, local, source)
    books = make_books(config)
    engines = EngineMaker(config, books)
    gateway = make_gateway(config, dispatch, books, engines)
    auto = make_auto(config, gateway)
    responses = make_response_store(config, books)
    server, app = make_gateway_server(config, gateway, auto, responses, live=live)
    listening: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    server.on_listening = listening.set_result
    if books is not None:
        await books.start(gateway.supervisor)
    if responses is not None:
        responses.start(gateway.supervisor)
    live.start(gateway, app, engines)
    gateway.start()
    auto.start(gateway.supervisor)
    serving = asyncio.create_task(server.serve())
    try:
        yield gateway, await listening
    finally:
        server.stop()
        await serving
        live.stop()
        await auto.stop()
        await gateway.stop()
        if responses is not None:
            await responses.stop()
        if books is not None:
            await books.stop()


def serve(
    config: Config,
    record_to: Path | None = None,
    on_listening: Callable[[int], None] | None = None,
    source: Path | None = None,
) -> int:
    return uvloop.run(run_gateway(config, record_to, on_listening, source))

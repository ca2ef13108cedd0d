"""The routes of the console: its files at `/console`, which anyone may load, and its figures under `/admin`.

    page ──poll──► /admin/live ──► one Snapshot, kept for LIVE_S ──► whoever decides, and the metrics

The page polls. So nothing is held open, and any number of viewers costs as much as one. Figures need an admin key.

This module knows where figures come from and not what they mean (snapshot.py, money.py, mistakes.py).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

import msgspec
from prometheus_client.core import Metric

from headway.api.dialect import HeaderList, Params
from headway.api.pages import JSON, Page, PageRoute
from headway.config import Config, ModelTable
from headway.config.to_core import curve_of
from headway.console.mistakes import read_mistakes
from headway.console.money import keys_today, money_today
from headway.console.snapshot import PolicyReading, make_snapshot
from headway.core.curve import Curve
from headway.errors import InvalidRequest, SetupError
from headway.ledger.keys import Key
from headway.ledger.reading import StoreReader

LIVE_S = 0.4  # a snapshot is kept for so long; the page asks twice a second
MAX_CURVE_POINTS = 64
TYPES = {
    ".html": b"text/html; charset=utf-8",
    ".js": b"text/javascript; charset=utf-8",
    ".css": b"text/css; charset=utf-8",
    ".txt": b"text/plain; charset=utf-8",
}
POLICY = (
    b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    b"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: HeaderList = [
    (b"content-security-policy", POLICY),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"no-cache"),
]


class Operated(Protocol):
    """A gateway that serves a configuration, as an operator sees it."""

    @property
    def config(self) -> Config: ...

    async def policy(self) -> PolicyReading: ...


class NoFile(InvalidRequest):
    """The console has no such file."""

    status = 404


class NotKept(Exception):
    """Why this gateway has no such figures. Told with status 200: a browser reports any other as an error."""


class ConsolePages:
    """`families` reads the metrics of all processes of this machine, `open_gates` says of each auto model whether its
    gate is open, and `reader` reads the ledger's store, if there is one."""

    def __init__(
        self,
        version: str,
        operated: Operated,
        families: Callable[[], Awaitable[Iterable[Metric]]],
        open_gates: Callable[[], Mapping[str, bool]],
        reader: StoreReader | None = None,
    ) -> None:
        self._version = version
        self._operated = operated
        self._families = families
        self._open_gates = open_gates
        self._reader = reader
        self._live: tuple[float, bytes] = (0.0, b"")  # until when it is kept
        self._making: asyncio.Task[bytes] | None = None
        self._files = {one.name: one.read_bytes() for one in resources.files(__package__).joinpath("page").iterdir()}

    def routes(self) -> Iterator[tuple[str, str, PageRoute]]:
        yield "GET", "/console", PageRoute(lambda *_: self._file("index.html"), "anyone", headers=HEADERS)
        yield "GET", "/console/{file}", PageRoute(self._named_file, "anyone", headers=HEADERS)
        yield "GET", "/admin/live", PageRoute(self._live_page, "admin")
        yield "GET", "/admin/offers", PageRoute(self._offers, "admin")
        yield "GET", "/admin/money", PageRoute(self._money, "admin")
        yield "GET", "/admin/keys", PageRoute(self._keys, "admin")
        yield "GET", "/admin/mistakes", PageRoute(self._mistakes, "admin")

    # --- files ---

    def _named_file(self, params: Params, _key: Key | None) -> Page:
        return self._file(params["file"])

    def _file(self, name: str) -> Page:
        if (body := self._files.get(name)) is None:
            raise NoFile("The console has no such file.")
        return 200, TYPES.get(Path(name).suffix, b"application/octet-stream"), body

    # --- figures ---

    async def _live_page(self, _params: Params, _key: Key | None) -> Page:
        until, body = self._live
        if time.monotonic() >= until:
            if self._making is None:
                self._making = asyncio.create_task(self._make_live())
            body = await asyncio.shield(self._making)
        return 200, JSON, body

    async def _make_live(self) -> bytes:
        try:
            policy, families = await asyncio.gather(self._operated.policy(), self._families())
            config = self._operated.config
            snapshot = make_snapshot(time.time(), self._version, config, policy, families, self._open_gates())
            body = msgspec.json.encode(snapshot)
            self._live = (time.monotonic() + LIVE_S, body)
            return body
        finally:
            self._making = None

    def _offers(self, _params: Params, _key: Key | None) -> Page:
        models = self._operated.config.models
        rows = [_model(one.name, one) for one in models]
        rows += [_model(one.auto_name, one) for one in models if one.auto is not None]
        return 200, JSON, msgspec.json.encode({"pools": list(_pools(models)), "models": rows})

    async def _money(self, _params: Params, _key: Key | None) -> Page:
        return await _kept(lambda: money_today(self._books(), self._operated.config))

    async def _keys(self, _params: Params, _key: Key | None) -> Page:
        return await _kept(lambda: keys_today(self._books()))

    async def _mistakes(self, _params: Params, _key: Key | None) -> Page:
        return await _kept(self._last_mistakes)

    def _books(self) -> StoreReader:
        if self._reader is None:
            raise NotKept("Nothing is billed: there is no [ledger] in headway.toml.")
        return self._reader

    async def _last_mistakes(self) -> dict[str, Any]:
        results = self._operated.config.gateway.eval_results
        if results is None:
            raise NotKept("No results are configured: run `headway eval` and set `eval_results` in [gateway].")
        try:
            return await asyncio.to_thread(read_mistakes, Path(results))
        except SetupError as error:
            raise NotKept(error.message) from None


async def _kept(read: Callable[[], Awaitable[dict[str, Any]]]) -> Page:
    try:
        figures = await read()
    except NotKept as why:
        figures = {"not_kept": str(why)}
    return 200, JSON, msgspec.json.encode(figures)


def _pools(models: Sequence[ModelTable]) -> Iterator[dict[str, Any]]:
    """The curve of each pool, and how many streams keep each floor by it."""
    for model in models:
        settings = next(iter(model.replicas), None) or model.discover
        if settings is None:
            continue
        curve = curve_of(settings)
        yield {
            "pool": model.name,
            "seats": settings.seats,
            "curve": _points(curve, settings.seats) if curve is not None else [],
            "floors": [
                {
                    "model": one.name,
                    "tier": tier.name,
                    "floor_tps": tier.floor_tps,
                    "streams": curve.largest_batch(tier.floor_tps, settings.seats) if curve is not None else 0,
                }
                for one in models
                if model.name in (one.name, one.replicas_of)
                for tier in one.tiers
                if tier.floor_tps is not None
            ],
        }


def _points(curve: Curve, seats: int) -> list[tuple[int, float]]:
    """From one to all seats, about MAX_CURVE_POINTS of them."""
    step = -(-seats // MAX_CURVE_POINTS)
    return [(streams, round(curve.speed_tps(streams), 3)) for streams in sorted({1, seats, *range(step, seats, step)})]


def _model(name: str, model: ModelTable) -> dict[str, Any]:
    price = model.price
    return {
        "model": name,
        "kind": "embeddings" if model.embeddings else "chat",
        "auto": name != model.name,
        "tiers": [tier.name for tier in model.tiers],
        "price": {"input": price.input, "output": price.output, "cached_input": price.cached_input} if price else None,
    }

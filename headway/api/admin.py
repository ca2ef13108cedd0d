"""The endpoints under `/admin`, which change what runs. They require an admin key."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Protocol

import msgspec

from headway.api.dialect import Params
from headway.api.pages import JSON, Page, PageRoute
from headway.config.differences import Difference
from headway.config.urls import http_url
from headway.errors import InvalidRequest, SetupError
from headway.ledger.keys import Key

MAX_ORDER_BYTES = 4096
MAX_CONFIG_BYTES = 8 * 2**20
MAX_URL = 300
MAX_REGISTERED = 10_000
MAX_REGISTER_BYTES = MAX_REGISTERED * (MAX_URL + 10)


class ReplicaLife(msgspec.Struct):
    """`state`: open, draining (takes no calls), or closed: it starts, or is down. `is_light`: it keeps a floor."""

    url: str
    model: str
    state: str
    aboard: int
    seats: int
    is_light: bool


class PoolReading(msgspec.Struct):
    """`tiers` has the seats wanted and ready of each model and tier; `demand` is what the scaling policy needs, with
    the fields of core/demand.py."""

    pool: str
    tiers: list[dict[str, str | int]]
    demand: dict[str, float]


class Admin(Protocol):
    """What a gateway can be told while it runs."""

    async def replicas(self) -> list[ReplicaLife]: ...

    async def demand(self) -> list[PoolReading]: ...

    async def drain(self, url: str, *, is_undone: bool) -> bool:
        """Let the replica take no calls, or take them again. Returns whether there is such a replica."""

    async def register(self, model: str, urls: list[str]) -> bool:
        """These are the engines of the model. Returns whether its engines are registered."""

    def differences(self, text: str) -> list[Difference]:
        """From the configuration that is served to the one with this text. Raises SetupError if it is not valid."""


class DrainOrder(msgspec.Struct, forbid_unknown_fields=True):
    url: str
    undo: bool = False


class RegisterRequest(msgspec.Struct, forbid_unknown_fields=True):
    model: str
    urls: Annotated[list[Annotated[str, msgspec.Meta(max_length=MAX_URL)]], msgspec.Meta(max_length=MAX_REGISTERED)]


class UnknownReplica(InvalidRequest):
    status = 404


class NotRegistered(InvalidRequest):
    status = 404


class AdminPages:
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def routes(self) -> Iterator[tuple[str, str, PageRoute]]:
        yield "GET", "/admin/replicas", PageRoute(self._replicas, "admin")
        yield "GET", "/admin/demand", PageRoute(self._demand, "admin")
        yield "POST", "/admin/drain", PageRoute(self._drain, "admin", MAX_ORDER_BYTES)
        yield "POST", "/admin/registered", PageRoute(self._register, "admin", MAX_REGISTER_BYTES)
        yield "POST", "/admin/differences", PageRoute(self._differences, "admin", MAX_CONFIG_BYTES)

    async def _replicas(self, _params: Params, _key: Key | None) -> Page:
        return 200, JSON, msgspec.json.encode({"replicas": await self._admin.replicas()})

    async def _demand(self, _params: Params, _key: Key | None) -> Page:
        return 200, JSON, msgspec.json.encode({"pools": await self._admin.demand()})

    async def _drain(self, params: Params, _key: Key | None) -> Page:
        try:
            order = msgspec.json.decode(params["body"], type=DrainOrder)
        except msgspec.MsgspecError as error:
            raise InvalidRequest(f'The body must look like {{"url": "http://10.0.0.3:8000"}}: {error}.') from None
        if not await self._admin.drain(order.url.rstrip("/"), is_undone=order.undo):
            known = ", ".join(one.url for one in (await self._admin.replicas())[:10])
            raise UnknownReplica(f"There is no replica {order.url[:200]!r}. Replicas: {known}.", "url")
        return await self._replicas(params, None)

    async def _register(self, params: Params, _key: Key | None) -> Page:
        try:
            order = msgspec.json.decode(params["body"], type=RegisterRequest)
            urls = [http_url(url) for url in order.urls]
        except (msgspec.MsgspecError, ValueError) as error:
            looks = '{"model": "llama", "urls": ["http://10.0.0.3:8000"]}'
            raise InvalidRequest(f"The body must look like {looks}: {error}.") from None
        if not await self._admin.register(order.model, urls):
            raise NotRegistered(
                f"Engines of {order.model[:200]!r} are not registered: give it [models.discover] with "
                "`registered = true`.",
                "model",
            )
        return 200, JSON, msgspec.json.encode({"model": order.model, "urls": urls})

    def _differences(self, params: Params, _key: Key | None) -> Page:
        try:
            found = self._admin.differences(params["body"])
        except SetupError as error:
            raise InvalidRequest(error.message) from None
        return 200, JSON, msgspec.json.encode({"differences": found})

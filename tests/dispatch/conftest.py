"""Leases to test: on a file, in a PostgreSQL and in an etcd of the tests' own."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol, TypeVar
from uuid import uuid4

import msgspec
import psycopg
import pytest

from headway.dispatch.lease import LeaderLease, LeaseUnavailable
from headway.dispatch.lease_etcd import EtcdLease
from headway.dispatch.lease_file import FileLease
from headway.dispatch.lease_postgres import PostgresLease
from headway.http1 import ConnectionPool
from runs.ledger.own_postgres import OwnPostgres
from tests.dispatch.freezing_proxy import FreezingProxy, proxy_to
from tests.dispatch.own_etcd import OwnEtcd

T = TypeVar("T")
LONG_S = 30  # a lease that does not end during a test, even on a busy machine


class LeaseStore(Protocol):
    """Where the lease of one cell is kept."""

    def contender(self, lease_s: int = LONG_S) -> LeaderLease: ...
    async def expire(self) -> None:
        """End the lease behind the back of its holder."""

    def freeze(self) -> None:
        """Let the store accept everything and answer nothing."""

    def thaw(self) -> None: ...


class FileStore:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "leader"
        self._answers = threading.Event()
        self._answers.set()
        for name in ("open", "stat", "fsync"):
            monkeypatch.setattr(os, name, self._slow(getattr(os, name)))

    def _slow(self, call: Callable[..., T]) -> Callable[..., T]:
        def wait_and_call(*arguments: Any, **options: Any) -> T:
            if threading.current_thread().name.startswith("lease"):  # the disk is slow for nobody else
                self._answers.wait(60)
            return call(*arguments, **options)

        return wait_and_call

    def contender(self, lease_s: int = LONG_S) -> FileLease:
        return FileLease(self.path, lease_s)

    async def expire(self) -> None:
        """A lock does not expire; but a copy of the file can take its place."""
        copy = self.path.with_suffix(".copy")
        shutil.copy(self.path, copy)
        copy.replace(self.path)

    def freeze(self) -> None:
        self._answers.clear()

    def thaw(self) -> None:
        self._answers.set()


class PostgresRow:
    def __init__(self, server: OwnPostgres, link: FreezingProxy, port: int) -> None:
        self._server = server
        self.port = port
        self._url = server.url.replace(f":{server.port}/", f":{port}/")
        self.cell = uuid4().hex
        self.freeze = link.freeze
        self.thaw = link.thaw

    def contender(self, lease_s: int = LONG_S) -> PostgresLease:
        return PostgresLease(self._url, self.cell, lease_s)

    async def expire(self) -> None:
        async with await psycopg.AsyncConnection.connect(self._server.url) as db:
            await db.execute("UPDATE leaders SET expires_us = 0 WHERE cell = %s", (self.cell,))


class EtcdCell:
    def __init__(self, server: OwnEtcd, link: FreezingProxy, port: int) -> None:
        self.server = server
        self.url = f"http://127.0.0.1:{port}"
        self.cell = uuid4().hex
        self.freeze = link.freeze
        self.thaw = link.thaw

    def contender(self, lease_s: int = LONG_S) -> EtcdLease:
        return EtcdLease([self.url], self.cell, lease_s)

    async def expire(self) -> None:
        [held] = (await self.ask("/v3/kv/range", {"key": self.key}))["kvs"]
        await self.ask("/v3/lease/revoke", {"ID": held["lease"]})

    @property
    def key(self) -> str:
        return base64.b64encode(f"headway/{self.cell}/leader".encode()).decode()

    async def ask(self, path: str, question: dict[str, Any]) -> Any:
        pool = ConnectionPool(self.server.url)
        try:
            status, body = await pool.exchange(b"POST", path, msgspec.json.encode(question))
            assert status == 200, body
            return msgspec.json.decode(body)
        finally:
            pool.close()


@pytest.fixture(scope="session")
def etcd() -> Iterator[OwnEtcd]:
    if shutil.which("etcd") is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    server = OwnEtcd()
    server.start()
    yield server
    server.remove()


OpenPostgres = Callable[[], AbstractAsyncContextManager[PostgresRow]]
OpenEtcd = Callable[[], AbstractAsyncContextManager[EtcdCell]]
OpenStore = Callable[[], AbstractAsyncContextManager[LeaseStore]]


@pytest.fixture
def open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenStore:
    @asynccontextmanager
    async def opened() -> AsyncIterator[FileStore]:
        store = FileStore(tmp_path, monkeypatch)
        try:
            yield store
        finally:
            store.thaw()  # a thread may wait for it

    return opened


@pytest.fixture
def open_postgres(postgres: OwnPostgres) -> OpenPostgres:
    @asynccontextmanager
    async def opened() -> AsyncIterator[PostgresRow]:
        async with proxy_to(postgres.port) as (link, port):
            yield PostgresRow(postgres, link, port)

    return opened


@pytest.fixture
def open_etcd(etcd: OwnEtcd) -> OpenEtcd:
    @asynccontextmanager
    async def opened() -> AsyncIterator[EtcdCell]:
        async with proxy_to(etcd.port) as (link, port):
            yield EtcdCell(etcd, link, port)

    return opened


@pytest.fixture(params=["file", "postgres", "etcd"])
def open_store(request: pytest.FixtureRequest) -> OpenStore:
    opened: OpenStore = request.getfixturevalue(f"open_{request.param}")
    return opened


@asynccontextmanager
async def closing(*leases: LeaderLease) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        for lease in leases:
            stack.push_async_callback(lease.close)
        yield


async def until(ask: Callable[[], Awaitable[T | None]]) -> T:
    """Ask until there is an answer. A store that is away now is asked again."""
    async with asyncio.timeout(60):
        while True:
            try:
                answer = await ask()
            except LeaseUnavailable:
                answer = None
            if answer is not None:
                return answer
            await asyncio.sleep(0.02)

"""The lease in etcd: its own expiry, several endpoints, and a server that restarts."""

from __future__ import annotations

import asyncio
import time

import pytest

from headway.dispatch.lease import LeaseUnavailable
from headway.dispatch.lease_etcd import EtcdLease
from tests.dispatch.conftest import LONG_S, OpenEtcd, closing, until
from tests.dispatch.own_etcd import OwnEtcd
from tests.running import raw_server

pytestmark = pytest.mark.anyio


async def test_it_expires_by_itself(etcd: OwnEtcd) -> None:
    one, other = EtcdLease([etcd.url], "expires"), EtcdLease([etcd.url], "expires")
    async with closing(one, other):
        epoch = await until(one.take)
        assert await until(other.take) > epoch
        assert not await until(lambda: one.renew(epoch))


async def test_renewals_keep_it_longer_than_its_time(etcd: OwnEtcd) -> None:
    one, other = EtcdLease([etcd.url], "renewed", 4), EtcdLease([etcd.url], "renewed", 4)
    async with closing(one, other):
        epoch = await until(one.take)
        end = time.monotonic() + 6
        while time.monotonic() < end:
            assert await until(lambda: one.renew(epoch))
            assert await other.take() is None


async def test_endpoints_are_tried_in_turn(open_etcd: OpenEtcd) -> None:
    async with open_etcd() as good, open_etcd() as frozen:
        frozen.freeze()
        lease = EtcdLease(["http://127.0.0.1:9", frozen.url, good.url], good.cell, LONG_S)
        async with closing(lease):
            epoch = await until(lease.take)
            begin = time.monotonic()
            for _ in range(5):
                assert await lease.renew(epoch)
            assert time.monotonic() - begin < LONG_S / 9  # it goes on with the one that answered
            frozen.thaw()
            good.freeze()
            assert await lease.renew(epoch)


async def test_a_deleted_key_is_a_lost_lease(open_etcd: OpenEtcd) -> None:
    async with open_etcd() as store:
        lease = store.contender()
        async with closing(lease):
            epoch = await until(lease.take)
            await store.ask("/v3/kv/deleterange", {"key": store.key})
            assert not await lease.renew(epoch)


async def test_a_standby_that_waits_leaves_nothing_behind(open_etcd: OpenEtcd) -> None:
    async with open_etcd() as store:
        one, other = store.contender(), store.contender()
        async with closing(one, other):
            await until(one.take)
            before = await store.ask("/v3/lease/leases", {})
            for _ in range(5):
                assert await other.take() is None
            assert len((await store.ask("/v3/lease/leases", {}))["leases"]) == len(before["leases"])


async def test_a_restarted_server_has_kept_the_lease() -> None:
    server = OwnEtcd()
    server.start()
    lease = EtcdLease([server.url], "restart", LONG_S)
    try:
        async with closing(lease):
            epoch = await until(lease.take)
            server.kill()
            with pytest.raises(LeaseUnavailable):
                await lease.renew(epoch)
            server.start()
            assert await until(lambda: lease.renew(epoch))
    finally:
        server.remove()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nnope",
        b'HTTP/1.1 200 OK\r\ncontent-length: 14\r\n\r\n{"kvs": "many"}',
        b"SSH-2.0-OpenSSH\r\n",
    ],
    ids=["status", "text", "type", "protocol"],
)
async def test_a_server_that_talks_nonsense_is_unavailable(answer: bytes) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)

    async with raw_server(talk) as url:
        lease = EtcdLease([url], "nonsense")
        async with closing(lease):
            with pytest.raises(LeaseUnavailable):
                await lease.take()

"""The lease in etcd, through the JSON gateway that etcd serves beside gRPC (3.4 and newer).

The leader's key is attached to a lease of etcd's own and disappears with it. The epoch is the revision of the whole
store at which the key was created, which only grows. TLS with client certificates is supported; users and passwords are
not.
"""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections import deque
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec

from headway.dispatch.lease import LeaseUnavailable
from headway.errors import ConnectionFailed
from headway.http1 import ConnectionPool

# The shortest lease that etcd gives with its default settings: 1.5 times the timeout of an election, rounded up.
TTL_S = 2
NOT_FOUND = 404


class EtcdKey(msgspec.Struct):
    create_revision: int = 0
    lease: int = 0


class EtcdKeys(msgspec.Struct):
    kvs: list[EtcdKey] = msgspec.field(default_factory=list)


class EtcdGrant(msgspec.Struct):
    ID: int


class EtcdTimeLeft(msgspec.Struct):
    TTL: int = 0  # 0: the lease is gone


class EtcdKeptAlive(msgspec.Struct):
    result: EtcdTimeLeft


class EtcdRange(msgspec.Struct):
    response_range: EtcdKeys = msgspec.field(default_factory=EtcdKeys)


class EtcdTransaction(msgspec.Struct):
    responses: list[EtcdRange]


class EtcdDone(msgspec.Struct):
    pass


T = TypeVar("T")


class EtcdLease:
    def __init__(
        self, endpoints: Sequence[str], cell: str, ttl_s: int = TTL_S, *, tls: ssl.SSLContext | None = None
    ) -> None:
        self.lease_s = float(ttl_s)
        self._ttl_s = ttl_s
        self._request_s = ttl_s / 3
        self._pools = deque(ConnectionPool(url, tls=tls) for url in endpoints)
        self._key = base64.b64encode(f"headway/{cell}/leader".encode()).decode()
        self._lease = 0  # the newest of etcd's leases that may hold the key for this dispatcher; 0: none
        self._epoch = 0

    async def take(self, above: int = 0) -> int | None:
        async with self._bounded():
            if any(key.lease != self._lease for key in await self._read_key()):
                return None
            await self._revoke()
            self._lease = (await self._ask("/v3/lease/grant", {"TTL": self._ttl_s}, EtcdGrant)).ID
            key = await self._create_key()
            if key.lease != self._lease:
                await self._revoke()
                return None
            # `above` is higher only if etcd was restored from a backup.
            self._epoch = max(key.create_revision, above + 1)
            return self._epoch

    async def renew(self, epoch: int) -> bool:
        if epoch != self._epoch:
            return False
        async with self._bounded():
            # The lease can outlive the key if somebody deletes the key.
            kept = await self._ask("/v3/lease/keepalive", {"ID": self._lease}, EtcdKeptAlive)
            return kept.result.TTL > 0 and any(key.lease == self._lease for key in await self._read_key())

    async def release(self, epoch: int) -> None:
        if epoch == self._epoch:
            async with self._bounded():
                await self._revoke()

    async def close(self) -> None:
        for pool in self._pools:
            pool.close()

    @asynccontextmanager
    async def _bounded(self) -> AsyncIterator[None]:
        try:
            async with asyncio.timeout(self._request_s):
                yield
        except TimeoutError as error:
            raise LeaseUnavailable("etcd does not answer") from error

    async def _read_key(self) -> list[EtcdKey]:
        return (await self._ask("/v3/kv/range", {"key": self._key}, EtcdKeys)).kvs

    async def _create_key(self) -> EtcdKey:
        """Create the key if it is missing, and return what is there now.

        If an endpoint does not answer, the next one is asked the same, and the first may have created it already."""
        read = {"request_range": {"key": self._key}}
        create = {"request_put": {"key": self._key, "lease": self._lease}}
        is_missing = {"target": "CREATE", "result": "EQUAL", "key": self._key, "create_revision": 0}
        transaction = {"compare": [is_missing], "success": [create, read], "failure": [read]}
        answer = await self._ask("/v3/kv/txn", transaction, EtcdTransaction)
        [key] = answer.responses[-1].response_range.kvs
        return key

    async def _revoke(self) -> None:
        """End etcd's lease, and with it the key."""
        if self._lease:
            await self._ask("/v3/lease/revoke", {"ID": self._lease}, EtcdDone, may_be_missing=True)
            self._lease = self._epoch = 0

    async def _ask(self, path: str, question: dict[str, Any], answer: type[T], *, may_be_missing: bool = False) -> T:
        """Ask the endpoints in turn, beginning with the one that answered last."""
        body = msgspec.json.encode(question)
        why = ""
        for _ in range(len(self._pools)):
            try:
                async with asyncio.timeout(self._request_s / len(self._pools)):
                    status, text = await self._pools[0].exchange(b"POST", path, body)
                if status == 200 or (status == NOT_FOUND and may_be_missing):
                    return msgspec.json.decode(text, type=answer, strict=False)  # etcd writes numbers as strings
                why = f"etcd answered with status {status}: {text[:200].decode(errors='replace')}"
            except TimeoutError:
                why = "etcd does not answer"
            except (ConnectionFailed, msgspec.ValidationError, msgspec.DecodeError) as error:
                why = f"etcd: {error}"
            self._pools.rotate(-1)
        raise LeaseUnavailable(why)

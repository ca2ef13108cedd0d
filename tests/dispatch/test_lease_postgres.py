"""The lease in PostgreSQL: expiry by the server's clock, and servers that restart, take no writes or fail over."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import psycopg
import pytest

from headway.dispatch.lease import LeaseUnavailable
from headway.dispatch.lease_postgres import PostgresLease
from headway.errors import SetupError
from runs.ledger.own_postgres import OwnPostgres
from tests.dispatch.conftest import LONG_S, OpenPostgres, closing, until

pytestmark = pytest.mark.anyio


async def test_it_expires_by_itself_and_can_be_renewed_until_another_takes_it(open_postgres: OpenPostgres) -> None:
    async with open_postgres() as row:
        one, other = row.contender(2), row.contender(2)
        async with closing(one, other):
            epoch = await until(one.take)
            await row.expire()
            assert await until(lambda: one.renew(epoch))
            assert await until(other.take) == epoch + 1
            assert not await until(lambda: one.renew(epoch))


async def test_contenders_at_the_same_moment(postgres: OwnPostgres) -> None:
    """The table is missing: each tries to create it."""
    with psycopg.connect(postgres.url, autocommit=True) as db:
        db.execute("DROP TABLE IF EXISTS leaders")
    contenders = [PostgresLease(postgres.url, "same moment", LONG_S) for _ in range(8)]
    async with closing(*contenders):
        epochs = await asyncio.gather(*(lease.take() for lease in contenders), return_exceptions=True)
        given = [epoch for epoch in epochs if isinstance(epoch, int)]
        # PostgreSQL lets one of two that create the same table fail. A loser may have failed before anybody took it.
        assert given == [1] or (not given and await until(contenders[0].take) == 1)
        assert all(epoch is None or isinstance(epoch, int | LeaseUnavailable) for epoch in epochs)


async def test_cells_have_leases_of_their_own(postgres: OwnPostgres) -> None:
    one, other = PostgresLease(postgres.url, "east", LONG_S), PostgresLease(postgres.url, "west", LONG_S)
    async with closing(one, other):
        assert await until(one.take) == 1
        assert await until(other.take) == 1


async def test_a_request_that_is_handled_late_takes_nothing_from_others(open_postgres: OpenPostgres) -> None:
    async with open_postgres() as row:
        one, other = row.contender(3), row.contender(LONG_S)
        async with closing(one, other):
            epoch = await until(one.take)
            await until(lambda: took_none(other))  # connected
            row.freeze()
            with pytest.raises(LeaseUnavailable):
                await one.renew(epoch)
            await row.expire()
            row.thaw()
            later = await until(other.take)
            assert later > epoch
            assert await other.renew(later)


async def took_none(lease: PostgresLease) -> bool:
    return await lease.take() is None


@pytest.fixture
def own_postgres() -> Iterator[OwnPostgres]:
    server = OwnPostgres()
    server.start()
    yield server
    server.remove()


async def test_a_restarted_server_has_kept_the_epoch(own_postgres: OwnPostgres) -> None:
    lease = PostgresLease(own_postgres.url, "cell", 3)
    async with closing(lease):
        epoch = await until(lease.take)
        own_postgres.kill(signal.SIGQUIT)
        for _ in range(2):
            with pytest.raises(LeaseUnavailable):
                await lease.renew(epoch)
        own_postgres.start()
        assert await until(lambda: lease.renew(epoch))


async def test_a_server_that_takes_no_writes_is_unavailable(own_postgres: OwnPostgres) -> None:
    def set_read_only(value: str) -> None:
        with psycopg.connect(own_postgres.url, autocommit=True) as db:
            db.execute("SET transaction_read_only = off")
            db.execute(f"ALTER SYSTEM SET default_transaction_read_only = {value}")
            db.execute("SELECT pg_reload_conf()")

    lease = PostgresLease(own_postgres.url, "cell", 3)
    async with closing(lease):
        epoch = await until(lease.take)
        set_read_only("on")
        await until(lambda: is_unavailable(lease, epoch))
        with pytest.raises(LeaseUnavailable, match="read-only"):
            await lease.renew(epoch)
        set_read_only("off")
        assert await until(lambda: lease.renew(epoch))


async def is_unavailable(lease: PostgresLease, epoch: int) -> bool | None:
    """The server's processes read a changed setting some time later."""
    try:
        await lease.renew(epoch)
    except LeaseUnavailable:
        return True
    return None


async def test_an_epoch_that_a_failover_lost_is_not_given_again(own_postgres: OwnPostgres) -> None:
    """The relays have seen it, and tell the next leader."""
    standby = OwnPostgres(standby_of=own_postgres)
    one = PostgresLease(own_postgres.url, "cell", 3)
    other = PostgresLease(standby.url, "cell", 3)
    try:
        async with closing(one, other):
            lost = await until(one.take)  # the standby was copied before, and is not running
            own_postgres.kill()
            standby.start()
            standby.promote()
            assert await until(lambda: other.take(above=lost)) == lost + 1
    finally:
        standby.remove()


async def test_a_host_that_does_not_answer_does_not_hide_the_next_one(open_postgres: OpenPostgres) -> None:
    """The driver tries each host for 2 s, longer than a request may take."""
    async with open_postgres() as row, open_postgres() as frozen:
        frozen.freeze()
        url = f"postgresql://headway@127.0.0.1:{frozen.port},127.0.0.1:{row.port}/postgres"
        lease = PostgresLease(url, row.cell)
        async with closing(lease):
            with pytest.raises(LeaseUnavailable):
                await lease.take()
            assert await until(lease.take)


async def test_a_url_with_a_password_is_not_shown() -> None:
    for url in ("postgresql://me:pass@word@host/name", "postgresql://me:pass%word@host/name"):
        with pytest.raises(SetupError, match="not a valid PostgreSQL URL") as error:
            await PostgresLease(url, "cell").take()
        assert "word@" not in str(error.value).replace("password@host", "")

"""What every lease promises, whatever keeps it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

import pytest

from headway.dispatch.lease import LeaderLease, Leadership, LeaseUnavailable
from tests.dispatch.conftest import OpenStore, closing, until

pytestmark = pytest.mark.anyio


async def taken(lease: LeaderLease, above: int = 0) -> int:
    """Take a lease that is free."""
    return await until(lambda: lease.take(above))


async def test_one_of_two_contenders_leads(open_store: OpenStore) -> None:
    async with open_store() as store:
        one, other = store.contender(), store.contender()
        async with closing(one, other):
            epoch = await taken(one)
            assert epoch > 0
            assert await other.take() is None
            assert await one.renew(epoch)
            assert await other.take() is None
            assert not await other.renew(epoch)


async def test_the_epoch_grows_with_every_change(open_store: OpenStore) -> None:
    async with open_store() as store:
        contenders = [store.contender() for _ in range(3)]
        async with closing(*contenders):
            epochs = []
            for turn in range(9):
                leader = contenders[turn % 3]
                epochs.append(await taken(leader))
                await leader.release(epochs[-1])
            assert epochs == sorted(set(epochs))


async def test_release_lets_the_other_in_at_once(open_store: OpenStore) -> None:
    async with open_store() as store:
        one, other = store.contender(), store.contender()
        async with closing(one, other):
            epoch = await taken(one)
            await one.release(epoch)
            later = await other.take()
            assert later is not None
            assert later > epoch
            assert not await one.renew(epoch)
            await one.release(epoch)  # it is not his any more
            assert await other.renew(later)


async def test_a_lease_that_another_has_taken_is_lost(open_store: OpenStore) -> None:
    async with open_store() as store:
        one, other = store.contender(), store.contender()
        async with closing(one, other):
            epoch = await taken(one)
            await store.expire()
            assert await taken(other) > epoch
            assert not await one.renew(epoch)
            assert await one.take() is None


async def test_a_holder_gets_a_new_epoch_at_once(open_store: OpenStore) -> None:
    async with open_store() as store:
        one, other = store.contender(), store.contender()
        async with closing(one, other):
            epoch = await taken(one)
            later = await one.take()
            assert later is not None
            assert later > epoch
            assert not await one.renew(epoch)
            assert await one.renew(later)
            assert await other.take() is None


async def test_the_epoch_is_higher_than_those_that_relays_have_seen(open_store: OpenStore) -> None:
    async with open_store() as store:
        one = store.contender()
        async with closing(one):
            epoch = await taken(one, above=1_000_000)
            assert epoch == 1_000_001
            assert await one.renew(epoch)


async def test_a_store_that_does_not_answer_is_unavailable_in_time(open_store: OpenStore) -> None:
    """And it is used again when it answers. What was asked meanwhile may have taken effect."""
    async with open_store() as store:
        one, new = store.contender(3), store.contender(3)
        async with closing(one, new):
            epoch = await taken(one)
            store.freeze()
            requests: list[Callable[[], Awaitable[object]]] = [
                lambda: one.renew(epoch),
                lambda: one.renew(epoch),
                one.take,
                lambda: one.release(epoch),
                new.take,
                new.take,
            ]
            for request in requests:
                begin = time.monotonic()
                with pytest.raises(LeaseUnavailable):
                    await request()
                assert time.monotonic() - begin < 2.0  # its bound is 1 s
            store.thaw()
            assert await taken(one) > epoch


async def test_a_renewal_can_be_cancelled_to_release_at_once(open_store: OpenStore) -> None:
    """Even if the store handles the renewal after the release."""
    async with open_store() as store:
        one, other = store.contender(), store.contender()
        async with closing(one, other):
            epoch = await taken(one)
            store.freeze()
            renewing = asyncio.create_task(one.renew(epoch))
            await asyncio.sleep(0.1)  # on its way
            renewing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await renewing
            store.thaw()
            await one.release(epoch)
            later = await other.take()
            assert later is not None
            assert later > epoch
            assert await other.renew(later)


async def test_who_wakes_after_the_lease_has_expired_does_not_decide(open_store: OpenStore) -> None:
    async with open_store() as store:
        now = 0.0
        one, other = store.contender(), store.contender()
        leader, successor = Leadership(one, lambda: now), Leadership(other, lambda: now)
        async with closing(one, other):
            assert await until(lambda: stood(leader))
            leader.heard_from([now], 1)
            assert leader.may_decide(now)
            now += one.lease_s  # stopped, and woken
            assert not leader.may_decide(now)
            await store.expire()
            assert await until(lambda: stood(successor))
            await leader.renew()
            assert leader.epoch is None
            assert not leader.may_decide(now)
            successor.heard_from([now], 1)
            assert successor.may_decide(now)


async def stood(leadership: Leadership) -> bool | None:
    return await leadership.stand() or None

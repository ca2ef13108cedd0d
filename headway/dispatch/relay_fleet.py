"""The replicas of a cell, for a relay: the dispatcher says which there are (cell_fleet.py)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from headway.dispatch.base import Driver
from headway.dispatch.fleet import Member
from headway.dispatch.frames import (
    MAX_BATCH,
    AdminAnswer,
    AdminOrder,
    FromDispatcher,
    HadMembers,
    KeepOrders,
    KeptOrders,
    MemberGone,
    MemberNames,
    Members,
    RegisterOrder,
)
from headway.dispatch.link import Link
from headway.errors import SetupError

log = logging.getLogger("headway.dispatch")

ANSWER_S = 5.0  # for the dispatcher to answer an operator

OrderOf = Callable[[int], AdminOrder | RegisterOrder]


class RelayFleet:
    def __init__(self) -> None:
        self._members: dict[str, Member] = {}
        self._busy: set[str] = set()  # replicas that had calls of this relay when it was welcomed
        self._kept: KeptOrders | None = None
        self._orders: dict[int, asyncio.Future[AdminAnswer]] = {}
        self._number = 0

    def welcomed(self, link: Link, epoch: int, busy: Iterable[str]) -> None:
        """Report to a dispatcher, before anything is said of calls."""
        # First: a replica that has calls and is not wanted drains, and the calls of others do not wait for it.
        if self._kept is not None and self._kept.epoch < epoch:
            link.send(self._kept)
        self._busy = {name for name in busy if name in self._members}
        had = [self._members[name] for name in sorted(self._busy)]
        for first in range(0, len(had), MAX_BATCH):
            link.send(HadMembers(had[first : first + MAX_BATCH]))

    def obey(self, message: FromDispatcher, driver: Driver, epoch: int) -> bool:
        """Returns whether the message is about replicas."""
        if isinstance(message, Members):
            for member in message.members:
                self._set(member, driver)
        elif isinstance(message, MemberNames):
            # Of those that have calls, the dispatcher hears at the moment. It says when they are gone.
            for name in self._members.keys() - set(message.names) - self._busy:
                self._remove(name, driver)
        elif isinstance(message, MemberGone):
            self._remove(message.name, driver)
        elif isinstance(message, KeepOrders):
            self._kept = KeptOrders(epoch, message.number, message.drained, message.registered)
        elif isinstance(message, AdminAnswer):
            if (order := self._orders.pop(message.number, None)) is not None and not order.done():
                order.set_result(message)
        else:
            return False
        return True

    async def order(self, link: Link, order: OrderOf) -> AdminAnswer:
        """`order` makes the message from its number. Raises TimeoutError if the dispatcher does not answer."""
        self._number += 1
        number = self._number
        answer: asyncio.Future[AdminAnswer] = asyncio.get_running_loop().create_future()
        self._orders[number] = answer
        link.send(order(number))
        try:
            async with asyncio.timeout(ANSWER_S):
                return await answer
        finally:
            self._orders.pop(number, None)

    def _set(self, member: Member, driver: Driver) -> None:
        known = self._members.get(member.name)
        if known is not None and known.is_same_engine(member):
            driver.change_replica(member.replica)
        else:
            self._remove(member.name, driver)
            try:
                driver.add_replica(member)
            except SetupError as error:  # the dispatcher does not know which kinds of engines this relay has
                log.error("%s", error.message)
                return
        self._members[member.name] = member

    def _remove(self, name: str, driver: Driver) -> None:
        if self._members.pop(name, None) is not None:
            driver.remove_replica(name)

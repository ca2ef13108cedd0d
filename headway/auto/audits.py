"""Where the audits of an auto model wait until the full model has been asked.

    StoredAudits   in the ledger's store (ledger/audits.py), encrypted; a restart goes on with them
    MemoryAudits   if there is no ledger: a restart forgets them, and with them what the watch had seen

An `AuditedCall` is all that an audit needs: the call as the full model gets it, and the student's answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast

import msgspec

from headway.core.trust import Verdict
from headway.ledger.audits import AuditRow, AuditSample, AuditStore


class AuditedCall(msgspec.Struct, frozen=True):
    call_id: str
    asked: bytes  # body of a chat request to the full model
    answered: bytes  # the student's answer, without log-probabilities
    wants_json: bool  # the text of the answer is JSON

    def as_bytes(self) -> bytes:
        return msgspec.msgpack.encode(self)

    @staticmethod
    def from_bytes(data: bytes) -> AuditedCall:
        return msgspec.msgpack.decode(data, type=AuditedCall)


class Audits(Protocol):
    """All methods but `close` raise StoreUnavailable or StoreRefused if the store does not take part."""

    @property
    def is_available(self) -> bool: ...

    async def page(self, after: int) -> list[AuditRow]:
        """Return what is known of the sample after this number, in its order: PAGE rows, or fewer if these are all."""

    async def keep(self, row: AuditRow, call: AuditedCall) -> bool:
        """Returns False if another call has this number."""

    async def withdraw(self, number: int) -> None:
        """Delete a call whose answer is not delivered."""

    async def read(self, number: int) -> AuditedCall | Verdict | None:
        """Return the call, or the verdict if the audit has ended. None if there is no such audit. Raises SealBroken if
        the secret has changed."""

    async def end(self, rows: Sequence[AuditRow]) -> None:
        """Write verdicts, and delete the calls that they are about."""

    async def expire(self) -> None:
        """Delete the calls that have waited for too long."""


class StoredAudits:
    def __init__(self, store: AuditStore, model: str, calibration: str) -> None:
        self._store = store
        self._sample = AuditSample(store.gateway, model, calibration)

    @property
    def is_available(self) -> bool:
        return self._store.is_available

    async def page(self, after: int) -> list[AuditRow]:
        return await self._store.page(self._sample, after)

    async def keep(self, row: AuditRow, call: AuditedCall) -> bool:
        return await self._store.keep(self._sample, row, call.as_bytes())

    async def withdraw(self, number: int) -> None:
        await self._store.withdraw(self._sample, number)

    async def read(self, number: int) -> AuditedCall | Verdict | None:
        found = await self._store.read(self._sample, number)
        return AuditedCall.from_bytes(found) if isinstance(found, bytes) else cast(Verdict | None, found)

    async def end(self, rows: Sequence[AuditRow]) -> None:
        await self._store.end(self._sample, rows)

    async def expire(self) -> None:
        await self._store.expire()


class MemoryAudits:
    is_available = True

    def __init__(self) -> None:
        self._calls: dict[int, AuditedCall] = {}

    async def page(self, after: int) -> list[AuditRow]:  # noqa: ARG002 (there are none)
        return []

    async def keep(self, row: AuditRow, call: AuditedCall) -> bool:
        self._calls[row.number] = call
        return True

    async def withdraw(self, number: int) -> None:
        self._calls.pop(number, None)

    async def read(self, number: int) -> AuditedCall | Verdict | None:
        return self._calls.get(number)

    async def end(self, rows: Sequence[AuditRow]) -> None:
        for row in rows:
            self._calls.pop(row.number, None)

    async def expire(self) -> None:
        pass  # core's verdict `expired` ends them

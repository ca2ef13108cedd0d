"""Finds replicas (`[models.discover]`): by DNS, the addresses behind a name are the engines of a model; or an admin
registers them, as `headway fleet` does.

An answer that fails or is empty changes nothing. An address that is new is a replica at once, and takes calls once its
engine has named its model and produced a token. One that is missing drains after MISSED answers; but if none of the
addresses that DNS names is open, DNS may be wrong, and nothing drains.

Whoever decides looks up: a gateway alone, or a dispatcher.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Set
from typing import TYPE_CHECKING

from headway.config import Config, DiscoverTable, ModelTable
from headway.config.to_core import replica_of
from headway.dispatch.fleet import Member
from headway.errors import LookupFailed

if TYPE_CHECKING:
    from dns.asyncresolver import Resolver

log = logging.getLogger("headway.discovery")

MISSED = 3  # answers without an address, after which it drains
MAX_FOUND = 10_000  # addresses of a name
LOOKUP_S = 5.0

Lookup = Callable[[DiscoverTable], Awaitable[set[str]]]  # the URLs; raises LookupFailed


class FoundReplicas:
    """The replicas behind one name, by the answers of DNS."""

    def __init__(self) -> None:
        self._missed: dict[str, int] = {}  # by URL: the last answers that did not have it

    @property
    def urls(self) -> Iterable[str]:
        return self._missed.keys()

    def answered(self, urls: Set[str], is_open: Callable[[str], bool]) -> bool:
        """DNS names these. Returns whether the replicas have changed."""
        before = set(self._missed)
        self._missed |= dict.fromkeys(sorted(urls)[:MAX_FOUND], 0)
        if any(is_open(url) for url in urls):
            for url in before - urls:
                self._missed[url] += 1
                if self._missed[url] >= MISSED:
                    del self._missed[url]
        return before != self._missed.keys()

    def replace(self, urls: Iterable[str]) -> bool:
        """There are these and no others. Returns whether the replicas have changed."""
        before, self._missed = self._missed, dict.fromkeys(urls, 0)
        return before.keys() != self._missed.keys()


class Discovery:
    def __init__(
        self,
        config: Config,
        is_open: Callable[[str], bool],
        on_change: Callable[[], None],
        lookup: Lookup | None = None,
    ) -> None:
        """`on_change` is called when other replicas are found."""
        self._is_open = is_open
        self._on_change = on_change
        self._lookup = lookup or DnsLookup()
        self._models: dict[str, tuple[ModelTable, DiscoverTable, FoundReplicas]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._is_running = False
        self.configure(config)

    def configure(self, config: Config) -> None:
        """What was found stays if the name is the same, and has the new settings."""
        found = {name: (table.dns, replicas) for name, (_, table, replicas) in self._models.items()}
        self._models = {}
        for model in config.models:
            if model.discover is not None:
                dns, replicas = found.get(model.name, (None, FoundReplicas()))
                kept = replicas if dns == model.discover.dns else FoundReplicas()
                self._models[model.name] = model, model.discover, kept
        if self._is_running:
            self.start()

    def members(self) -> list[Member]:
        return [
            Member(replica_of(model, table, name=url), table.kind, table.max_model_len or 0)
            for model, table, found in self._models.values()
            for url in found.urls
        ]

    def register(self, model: str, urls: Iterable[str]) -> bool:
        """These are the engines of the model. Returns whether they are registered, for this model."""
        known = self._models.get(model)
        if known is None or not known[1].registered:
            return False
        if known[2].replace(urls):
            self._on_change()
        return True

    def start(self) -> None:
        self._is_running = True
        by_dns = {name for name, (_, table, _) in self._models.items() if table.dns is not None}
        for name in self._tasks.keys() - by_dns:
            self._tasks.pop(name).cancel()
        for name in by_dns - self._tasks.keys():
            self._tasks[name] = asyncio.create_task(self._look_up(name))

    def stop(self) -> None:
        self._is_running = False
        for task in self._tasks.values():
            task.cancel()
        self._tasks = {}

    async def _look_up(self, name: str) -> None:
        said = ""
        while True:
            _, table, found = self._models[name]
            problem = ""
            try:
                async with asyncio.timeout(LOOKUP_S):
                    urls = await self._lookup(table)
            except (LookupFailed, TimeoutError) as error:
                problem = str(error) or "it took too long"
            else:
                problem = "" if urls else "there is no address"
                if self._models.get(name, (None, None, None))[2] is found and found.answered(urls, self._is_open):
                    self._on_change()
            if problem and problem != said:
                log.warning("%s cannot be looked up, so the replicas of %s stay: %s", table.dns, name, problem)
            said = problem
            await asyncio.sleep(table.every_s)


class DnsLookup:
    """Asks the name servers of this machine (/etc/resolv.conf)."""

    def __init__(self, resolver: Resolver | None = None) -> None:
        self._resolver = resolver

    async def __call__(self, table: DiscoverTable) -> set[str]:
        assert table.dns is not None
        # Only who finds replicas by DNS waits for this import.
        import dns.asyncresolver
        import dns.exception
        import dns.rdatatype

        if self._resolver is None:
            self._resolver = dns.asyncresolver.Resolver()
            self._resolver.cache = None
        try:
            if table.dns.startswith("_"):
                found = await self._resolver.resolve(table.dns, dns.rdatatype.SRV, search=True)
                targets = {(str(one.target).rstrip("."), one.port) for one in found}
                return {f"{table.scheme}://{host}:{port}" for host, port in targets}
            host, _, port = table.dns.rpartition(":")
            addresses = await self._resolver.resolve_name(host, search=True)
            return {f"{table.scheme}://{_in_url(address)}:{port}" for address in addresses.addresses()}
        except dns.exception.Timeout as error:  # what it says differs each time
            raise LookupFailed("no name server answered in time") from error
        except (dns.exception.DNSException, OSError) as error:
            raise LookupFailed(str(error) or type(error).__name__) from error


def _in_url(address: str) -> str:
    return f"[{address}]" if ":" in address else address

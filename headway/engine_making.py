"""Makes the engine of each replica, by its kind."""

from __future__ import annotations

import importlib.util
import os
import time

from headway.config import Config, HostedTable
from headway.config.to_core import price_of
from headway.deciding import members_of
from headway.dispatch.fleet import Member
from headway.engines.base import Engine
from headway.engines.hosted import HostedServer, HostedTerms
from headway.engines.kinds import HOSTED, KINDS, check_kind
from headway.errors import SetupError
from headway.ledger.books import Books
from headway.ledger.budget import HostedBudget
from headway.price import MICRO


def check_engines(config: Config) -> None:
    """Raises SetupError if an engine cannot be made: its kind is unknown, or the key of a hosted server is missing."""
    for member in members_of(config):
        check_kind(member.name, member.kind)
        if member.kv_events and importlib.util.find_spec("zmq") is None:
            raise SetupError(
                f"Replica {member.name} has `kv_events`, which need pyzmq: pip install 'headway[kv-events]'"
            )
    for model in config.models:
        if model.hosted is not None and not os.environ.get(model.hosted.key_env):
            raise SetupError(
                f"Model {model.name!r} has [models.hosted] with key_env = {model.hosted.key_env!r}, and there is no "
                "such environment variable: set it to the key of the server."
            )


class EngineMaker:
    def __init__(self, config: Config, books: Books | None) -> None:
        self._books = books
        self._hosted: dict[str, tuple[str, HostedTable]] = {}  # by URL: the model and its server
        self._budgets: dict[tuple[str, float], HostedBudget] = {}
        self.configure(config)

    def configure(self, config: Config) -> None:
        """Hosted servers that are here stay: calls may be aboard."""
        self._hosted |= {
            model.hosted.url: (model.name, model.hosted) for model in config.models if model.hosted is not None
        }

    def make(self, member: Member) -> Engine:
        """Its model is that of its pool. Raises SetupError if there is no such kind."""
        check_kind(member.name, member.kind)
        if member.kind == HOSTED:
            return HostedServer(member.name, member.name, lambda: self._terms(member.name))
        return KINDS[member.kind](member.name, member.name, member.replica.pool)

    def _terms(self, url: str) -> HostedTerms:
        name, table = self._hosted[url]
        key, price = os.environ.get(table.key_env, ""), price_of(table.price)
        return HostedTerms(table.model or name, key, price, table.max_output_tokens, self._budget(table))

    def _budget(self, table: HostedTable) -> HostedBudget:
        assert self._books is not None, "the configuration is checked"
        budget = self._budgets.get((table.url, table.budget_day))
        if budget is None:
            budget = HostedBudget(self._books.budgets, table.url, round(table.budget_day * MICRO), time.monotonic)
            self._budgets[table.url, table.budget_day] = budget
        return budget

"""headway.toml: its tables, the checks, and the lines that error messages point to."""

from headway.config.auto_table import AutoTable
from headway.config.cell_table import CellTable
from headway.config.checks import as_text, from_text, load, parse
from headway.config.engine_table import EngineFlags, EngineTable, ProfileTable, SpeculationTable
from headway.config.gateway_table import GatewayTable
from headway.config.hosted_table import HostedTable
from headway.config.ledger_table import LedgerTable
from headway.config.price_table import PriceTable, TokenPrices
from headway.config.replica_table import DiscoverTable, EngineSettings, ReplicaTable
from headway.config.responses_table import ResponsesTable
from headway.config.tables import (
    Config,
    KeepPromptsTable,
    ModelTable,
    TierTable,
)

__all__ = [
    "AutoTable",
    "CellTable",
    "Config",
    "DiscoverTable",
    "EngineFlags",
    "EngineSettings",
    "EngineTable",
    "GatewayTable",
    "HostedTable",
    "KeepPromptsTable",
    "LedgerTable",
    "ModelTable",
    "PriceTable",
    "ProfileTable",
    "ReplicaTable",
    "ResponsesTable",
    "SpeculationTable",
    "TierTable",
    "TokenPrices",
    "as_text",
    "from_text",
    "load",
    "parse",
]

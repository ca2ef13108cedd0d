"""headway.toml: its tables, the checks, and the lines that error messages point to."""

from headway.config.auto_table import AutoTable
from headway.config.cell_table import CellTable
from headway.config.checks import as_text, from_text, load, parse
from headway.config.engine_table import EngineTable, SpeculationTable
from headway.config.gateway_table import GatewayTable
from headway.config.hosted_table import HostedTable
from headway.config.price_table import PriceTable, TokenPrices
from headway.config.replica_table import DiscoverTable, EngineSettings, ReplicaTable
from headway.config.responses_table import ResponsesTable
from headway.config.tables import (
    Config,
    KeepPromptsTable,
    LedgerTable,
    ModelTable,
    TierTable,
)

__all__ = [
    "AutoTable",
    "CellTable",
    "Config",
    "DiscoverTable",
    "EngineSettings",
    "EngineTable",
    "GatewayTable",
    "HostedTable",
    "KeepPromptsTable",
    "LedgerTable",
    "ModelTable",
    "PriceTable",
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

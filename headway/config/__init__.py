"""headway.toml: its tables, the checks, and the lines that error messages point to."""

from headway.config.auto_table import AutoTable
from headway.config.checks import load
from headway.config.tables import (
    Config,
    EngineTable,
    GatewayTable,
    KeepPromptsTable,
    LedgerTable,
    ModelTable,
    PriceTable,
    ReplicaTable,
    SpeculationTable,
    TierTable,
)

__all__ = [
    "AutoTable",
    "Config",
    "EngineTable",
    "GatewayTable",
    "KeepPromptsTable",
    "LedgerTable",
    "ModelTable",
    "PriceTable",
    "ReplicaTable",
    "SpeculationTable",
    "TierTable",
    "load",
]

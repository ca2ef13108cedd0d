"""The ledger: under faults, outages and races, and what it costs."""

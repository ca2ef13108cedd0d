#!/usr/bin/env bash
# 500 calls at once on one key with money for half of them, over four gateways and one PostgreSQL (about a minute). Exits 0
# only if the budget is never overrun and nobody is refused while there is money. An argument sets the rounds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.budget_race "$@"

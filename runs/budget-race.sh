#!/usr/bin/env bash
# Sends 500 calls at once on one key with money for 250, over four gateways and one PostgreSQL server: the budget is never
# overrun, and no call is refused while there is money. About a minute. Argument: rounds (20).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.budget_race "$@"

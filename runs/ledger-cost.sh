#!/usr/bin/env bash
# Measures what the ledger adds to a call: one gateway with it and one without, in turns. About 2 minutes; needs the
# PostgreSQL server. Argument: rounds (5).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.cost "$@"

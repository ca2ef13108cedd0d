#!/usr/bin/env bash
# What the books add to a call: one gateway with them and one without, in turns, in one run (about 2 minutes; needs
# PostgreSQL's server). Exits 0 only if they add at most 0.3 ms. An argument sets the rounds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.cost "$@"

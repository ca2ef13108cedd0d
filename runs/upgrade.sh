#!/usr/bin/env bash
# The ledger of version 0.1 is taken over by this one, on SQLite and on PostgreSQL: gateways of 0.1 are ended or killed
# with entries in their spools, and this version goes on with their tables and spools. Then gateways of 0.1 run on its
# store, alone and beside it. Every entry is judged by the engines' and the clients' records. About 6 minutes.
# Arguments: episodes of each store (6), seed.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.upgrade "$@"

#!/usr/bin/env bash
# PostgreSQL is killed 20 times for 30 s under load (about 15 minutes). Exits 0 only if no call is refused for it, nothing
# is missing in the books, and the gateway's memory comes back each time. Arguments: outages, seconds of each.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.outages "$@"

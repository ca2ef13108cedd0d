#!/usr/bin/env bash
# Races callers over four relays on keys with a limit of tokens per minute and on keys with a budget, on scripted replicas and
# a PostgreSQL server: what is spent above a limit is at most what was under way when it was reached, nothing is spent above a
# budget, and the books are exact. About 2 minutes. Arguments: seed (1), rounds (4).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.cell.limits "$@"

#!/usr/bin/env bash
# The books under faults: 100,000 streams, 1,000 faults at least, judged by the replicas' own records (about 6 minutes; needs
# PostgreSQL's server). Exits 0 only if nothing is lost, doubled or over-billed. Arguments: streams, faults, seed.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.torture "$@"

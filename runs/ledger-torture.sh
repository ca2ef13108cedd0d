#!/usr/bin/env bash
# Tests the ledger under faults: 100,000 streams and at least 1,000 faults, compared with the replicas' own records. No
# entry is lost, billed twice or over-billed. About 6 minutes; needs the PostgreSQL server.
# Arguments: streams (100,000), faults (1,000), seed (1).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.torture "$@"

#!/usr/bin/env bash
# Kills PostgreSQL 20 times for 30 s under load: no call is refused, no entry is missing, and the gateway's memory does not
# grow. About 15 minutes. Arguments: outages (20), seconds of each (30).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.ledger.outages "$@"

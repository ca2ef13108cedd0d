#!/usr/bin/env bash
# What the gateway costs, beside the bare engine in one run (about 8 minutes; needs the engine's environment, which it
# makes if it is missing). Exits 0 only if every bar holds. An argument sets the number of rounds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.tax "$@"

#!/usr/bin/env bash
# A live run with tiers, limits and faults on scripted replicas, recorded, and replayed through core (about a minute). Exits
# 0 only if every action is the same. An argument sets the number of calls (default 2,400).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.simulation.parity "$@"

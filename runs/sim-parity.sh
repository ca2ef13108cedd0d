#!/usr/bin/env bash
# Records a live run with tiers, limits and faults on scripted replicas and replays it through core: every action must be
# the same. About a minute. Argument: calls (2,400).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.simulation.parity "$@"

#!/usr/bin/env bash
# Compares what the load generator reports with what is programmed into a scripted engine, at 1 to 256 streams.
# About 2 minutes. Argument: rounds (3).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.bench.truth "$@"

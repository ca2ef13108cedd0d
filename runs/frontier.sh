#!/usr/bin/env bash
# Measures the frontier of one real vLLM engine, and whether three points of it predict the others. About 12 minutes; makes
# the engine's environment if it is missing. Argument: repeats of each point (3).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.bench.frontier "$@"

#!/usr/bin/env bash
# The frontier of one real vLLM, and whether three points of it predict the others (about 12 minutes; makes the engine's
# environment if it is missing). Exits 0 only if the bar holds. An argument sets the repeats of each point (default 3).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.bench.frontier "$@"

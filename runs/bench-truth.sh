#!/usr/bin/env bash
# The load generator beside what is programmed into a scripted engine, from 1 to 256 streams (about two minutes).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.bench.truth "$@"

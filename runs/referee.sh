#!/usr/bin/env bash
# Compares Headway's load generator with GuideLLM on the same scripted engine under the same load. About 5 minutes; GuideLLM
# gets an environment of its own outside the checkout (1.7 GB). Argument: turns (3).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.bench.referee "$@"

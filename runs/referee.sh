#!/usr/bin/env bash
# Headway's load generator beside GuideLLM, on the same scripted engine under the same load (about 5 minutes; GuideLLM
# gets an environment of its own outside the checkout, made if it is missing: 1.7 GB). Exits 0 only if the two agree
# within the bar everywhere. An argument sets the number of turns.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.bench.referee "$@"

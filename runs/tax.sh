#!/usr/bin/env bash
# Measures what the gateway costs beside the bare engine in one run: throughput on real vLLM, added time to the first token,
# CPU per token. About 10 minutes on free cores; makes the engine's environment if it is missing. Argument: rounds (7).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.tax "$@"

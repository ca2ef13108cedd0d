#!/usr/bin/env bash
# Measures how much the speed of a real vLLM engine varies though its batch is the same: four streams on one core, beside a
# full engine on the other. Writes data/engine_noise.csv, which the simulator's replicas read. About 10 minutes on two quiet
# cores; makes the engine's environment if it is missing. Argument: rounds of about a minute (8).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.engine.noise "$@"

#!/usr/bin/env bash
# Measures fast mode on real vLLM: two replicas on two cores, saturated with standard calls all the time, and fast streams
# beside them. About 12 minutes; makes the engine's environment if it is missing. Argument: fast streams (200).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.fast_mode "$@"

#!/usr/bin/env bash
# Measures fast mode on real vLLM: two replicas on two cores, saturated with standard calls all the time, and fast streams
# beside them, in blocks that alternate with the same engines split by hand. About an hour on two quiet cores; goes on after
# its last block if it was interrupted. Makes the engine's environment if it is missing. Argument: fast streams a side (600).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.fast_mode "$@"

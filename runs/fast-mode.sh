#!/usr/bin/env bash
# Fast mode on real vLLM: two replicas on two cores, standard load at saturation the whole time, and fast streams beside it
# (about 12 minutes; makes the engine's environment if it is missing). An argument sets the number of fast streams.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.fast_mode "$@"

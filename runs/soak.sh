#!/usr/bin/env bash
# Runs a gateway at 70 % load for an hour, with 5 % of the clients leaving, and looks for what grows: memory, file
# descriptors, tasks, seats. Needs about a tenth of a core. Argument: minutes (60).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.soak "$@"

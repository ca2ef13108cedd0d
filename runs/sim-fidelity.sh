#!/usr/bin/env bash
# The same arrivals through the live gateway, on scripted replicas, and through the simulator (about 4 minutes). Exits 0 only if
# throughput and end-to-end times agree within the bars. An argument sets the seconds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" runs/sim_fidelity.py "$@"

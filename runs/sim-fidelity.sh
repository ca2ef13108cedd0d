#!/usr/bin/env bash
# The same arrivals through the live gateway and through the simulator: on scripted replicas, and on one real vLLM engine
# that is measured before, between and after (about 17 minutes). Exits 0 only if throughput, end-to-end times and floors kept
# agree within the bars. Arguments: seconds on scripted replicas, segments on vLLM (0: none).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.simulation.fidelity "$@"

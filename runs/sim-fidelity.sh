#!/usr/bin/env bash
# Sends the same arrivals through the live gateway and through the simulator: on scripted replicas, and on one real vLLM
# engine that is measured before, between and after. About 17 minutes.
# Arguments: seconds of arrivals on scripted replicas (180), segments on vLLM (5; 0 for none).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.simulation.fidelity "$@"

#!/usr/bin/env bash
# Simulates ten million daily users on ten thousand replicas with a hundred gateways, with the compiled policy, and draws
# the pictures of docs/explanation/internet-scale.md. About 20 minutes on two cores. `small` simulates a tenth of the fleet.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.simulation.internet_scale "$@"

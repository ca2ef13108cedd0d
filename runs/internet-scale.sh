#!/usr/bin/env bash
# The figures and pictures of docs/explanation/internet-scale.md: ten million daily users on ten thousand replicas with a
# hundred gateways, simulated with the compiled policy (about 20 minutes on two cores). `small` plays a tenth of the whole.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.simulation.internet_scale "$@"

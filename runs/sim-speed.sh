#!/usr/bin/env bash
# How fast the simulator is on one core, compiled as setup.py has it, the making of the calls included (about 6 minutes).
# Exits 0 only if its bars hold. An argument sets the scale: 0.1 plays a tenth of the calls.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.simulation.speed "$@"

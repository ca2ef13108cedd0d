#!/usr/bin/env bash
# Measures how many calls per second the simulator plays on one core, compiled as setup.py does it, making the calls
# included. About 6 minutes. Argument: scale (1; 0.1 plays a tenth of the calls).
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.simulation.speed "$@"

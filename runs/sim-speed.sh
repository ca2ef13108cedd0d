#!/usr/bin/env bash
# How fast the simulator is on one core, the making of the calls included (about 10 minutes). Exits 0 only if its bars hold.
# An argument sets the scale: 0.1 plays a tenth of the calls.
source "$(dirname "$0")/prepare.bash"
exec "$PY" runs/sim_speed.py "$@"

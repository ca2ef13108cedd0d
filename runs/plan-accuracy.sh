#!/usr/bin/env bash
# How far `headway plan` is off without calibration, on public measurements (under a minute), and whether its bands hold for
# a model and a chip that were left out. The measurements are in data/. Exits 0 only if the bars hold.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.planning.accuracy "$@"

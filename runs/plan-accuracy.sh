#!/usr/bin/env bash
# How far `headway plan` is off without calibration, on public measurements (half a minute). Exits 0 only if its bars hold.
# HEADWAY_DATA names the folder of the measurements; else ../shared/data beside the repository.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.planning.accuracy "$@"

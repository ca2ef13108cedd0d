#!/usr/bin/env bash
# The picture of the README: one round of `headway demo --scripted`, recorded from the live run as docs/demo.svg (20 s).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.front_door.picture

#!/usr/bin/env bash
# Measures what deciding in another process costs, on scripted replicas, beside one process that does everything: the time to a
# seat, a relay's CPU per token, the dispatcher's CPU per call, and what is added to the first token. All of them with what
# setup.py compiles. About 6 minutes on two quiet cores.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.cell.relays "$@"

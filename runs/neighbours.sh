#!/usr/bin/env bash
# Measures what an honest tenant keeps of its throughput beside a hostile one: leaving, n = 8, long prompts, slow reading,
# huge schemas, oversize answers. About 15 minutes on scripted engines. Arguments: pairs of turns (5), calls per turn (120).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.neighbours "$@"

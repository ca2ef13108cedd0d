#!/usr/bin/env bash
# The express rule beside one shared pool and every static split, in virtual time: 50 replicas, standard demand at
# saturation, bursty fast demand that varies fivefold (about 4 minutes). An argument sets the number of seeds; 1 is enough
# for the pictures of docs/explanation/fast-mode.md, which show seed 0 and are drawn at the end.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.rule "$@"

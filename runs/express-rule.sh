#!/usr/bin/env bash
# The express rule beside one shared pool and every static split, in virtual time: 50 replicas, standard demand at
# saturation, bursty fast demand that varies fivefold (about 4 minutes). An argument sets the number of seeds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" runs/express_rule.py "$@"

#!/usr/bin/env bash
# Compares the express rule with one shared pool and with every static split, in virtual time: 50 replicas, standard demand
# at saturation, bursty fast demand that varies fivefold. Draws the pictures of docs/explanation/fast-mode.md, which show
# seed 0. About 4 minutes. Argument: seeds (3).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.rule "$@"

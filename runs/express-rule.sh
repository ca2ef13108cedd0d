#!/usr/bin/env bash
# Compares the express rule with every static split, in virtual time: 50 replicas, standard demand at saturation, fast demand
# of three swings and two kinds of bursts, and the shape of a public trace. Draws the pictures of docs/explanation/express-rule.md.
# Compiles the policy first; about 40 minutes. Argument: seeds (5).
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.express.rule "$@"

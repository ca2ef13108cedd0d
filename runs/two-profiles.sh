#!/usr/bin/env bash
# Compares a fleet of two profiles with the best fleet of one on the same chips, in virtual time: the same floor, and what is
# left for standard calls, with 10, 20 and 30 % fast demand. Compiles the policy first; about 10 minutes. Draws the
# picture of docs/how-to/plan-a-fleet.md. Argument: seeds (5).
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.two_profiles.compare "$@"

#!/usr/bin/env bash
# Compares a fleet that scales with the smallest fixed fleet that serves as well, in virtual time: a day with the shape of
# Azure's conversation trace (its hour stretched over 24), replicas that take three minutes to start. Draws the picture of
# docs/design/0013-scaling.md. Compiles the policy first; about 20 minutes. Argument: seeds (3).
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.simulation.scaling "$@"

#!/usr/bin/env bash
# Simulates ten million daily users on ten thousand replicas in ten cells, each with its dispatcher, with the compiled
# policy: delays, deaths, loads, handing on. Draws the pictures of docs/explanation/internet-scale.md. About 10 minutes on two
# cores. `small` makes the cells of the whole fleet a tenth as large, and leaves the largest cell out.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.simulation.internet_scale "$@"

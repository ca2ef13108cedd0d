#!/usr/bin/env bash
# Measures how many calls one dispatcher decides for: 10,000 replicas and 64 connections, on one core, core compiled. The load
# generator on the other core speaks the link and carries no tokens. About 3 minutes; needs two quiet cores.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.cell.dispatcher "$@"

#!/usr/bin/env bash
# Mistakes first: the tuned teacher and its student of runs/distill.sh (made here if they are missing: 2 hours) on real
# vLLM, behind one gateway, with the auto model between them. 80 % routine and 20 % hard tasks, all held out; the gate is
# calibrated on others. Every speed with its mistakes by kind, its tok/s, the time to a right answer at three times to fix
# a mistake, and its cost; the page that says when to use which; what auto adds to the first token of free text. About 40
# minutes. Measure alone: both cores are used.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.mistakes.by_speed "$@"

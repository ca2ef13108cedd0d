#!/usr/bin/env bash
# Counts the mistakes of every speed on real vLLM: the tuned teacher and the student of runs/distill.sh (made here if they
# are missing: 2 hours) behind one gateway, with the auto model between them. 80 % routine and 20 % hard tasks, all held
# out; the gate is calibrated on others, with other tools or arguments. Asked greedily and at temperature 0.7. Reports
# mistakes by kind, tok/s, the time to a right answer by the time a mistake takes to fix, cost, what the page recommends,
# and what auto adds to the first token of free text. About an hour on both cores: run nothing else. Finished stages are
# kept.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.mistakes.by_speed "$@"

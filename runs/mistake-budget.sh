#!/usr/bin/env bash
# Simulates whether a mistake budget is kept as often as it says, and whether a student that gets worse is noticed in time:
# 2,000 repetitions of calibrate-then-serve at budgets of 1, 2 and 5 %, with the gate, the threshold and the watch that the
# gateway runs. Simulated, because only there the truth is known. About 4 minutes. Argument: repetitions (2,000).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.mistakes.budget "$@"

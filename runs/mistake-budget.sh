#!/usr/bin/env bash
# Is a budget of mistakes kept as often as it says, and is a student that gets worse noticed in time? Simulated, because
# only there the truth is known: 2,000 repetitions of calibrate-then-serve at budgets of 1, 2 and 5 %, with the gate, the
# threshold and the watch that the gateway runs (about 4 minutes). An argument sets the number of repetitions.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.mistakes.budget "$@"

#!/usr/bin/env bash
# Simulates whether a mistake budget is kept as often as it says, and whether a student that gets worse is noticed in time,
# also if audits wait for seats: 2,000 repetitions of calibrate-then-serve at budgets of 1, 2 and 5 %, with seats for 100,
# 50, 30 and 0 % of the audits, with the gate, the threshold and the trust that the gateway runs. Simulated, because only
# there the truth is known. Then kills a process that audits, on a real store, between two verdicts. About 15 minutes.
# Argument: repetitions (2,000).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.mistakes.budget "$@"

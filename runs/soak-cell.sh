#!/usr/bin/env bash
# Runs the cell of the torture (four relays, two dispatchers, eight scripted engines, HAProxy, PostgreSQL) for two hours with all
# its kinds of calls at a steady rate, 3 % of the clients leaving, and looks for what grows in any process: memory, file
# descriptors, threads, tasks; for loop lag; and whether the books are exact. Takes two fifths of two cores. Argument: minutes
# (120; fewer only try the run, and it exits with 1). --faults N: so many mild faults an hour. --calls-per-s N: another rate.
source "$(dirname "$0")/prepare.bash"
install_missing haproxy:haproxy postgres:postgresql
exec "$PY" -m runs.torture.soak "$@"

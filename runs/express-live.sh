#!/usr/bin/env bash
# The express rule seen from outside: eight scripted replicas behind one gateway, mixed load, replicas that are killed,
# stall, refuse, slow down and drop streams; the replicas' own records are the witness (about 5 minutes). Exits 0 only if
# its bars hold, 3 if the machine is too busy to judge. An argument sets the number of fast calls (default 2,400).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.live "$@"

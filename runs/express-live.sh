#!/usr/bin/env bash
# The express rule seen from outside: eight scripted replicas behind one gateway, mixed load, replicas that are killed,
# stall, refuse, slow down and drop streams; the replicas' own records are the witness. An argument sets the seconds
# (default 300).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.live "$@"

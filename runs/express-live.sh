#!/usr/bin/env bash
# Checks the express rule from outside: eight scripted replicas behind one gateway under mixed load; replicas are killed,
# stall, refuse, slow down and drop streams; their own records are the evidence. About 5 minutes.
# Argument: fast calls (2,400).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.live "$@"

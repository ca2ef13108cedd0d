#!/usr/bin/env bash
# Restarts every replica under load, one after the other, each after `headway drain`: eight scripted ones with floors, then two
# real vLLM engines. No call fails, no stream is cut, and floors are kept. About 8 minutes; makes the engine's environment if it
# is missing. Argument: "scripted" leaves the real engines out.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.fleet.rolling "$@"

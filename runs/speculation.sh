#!/usr/bin/env bash
# Whether n-gram speculation makes streams faster, by batch and by text: real vLLM, a plain and a speculative engine on a
# core each, loaded in turns (about 16 minutes; makes the engine's environment if it is missing). An argument sets the
# number of rounds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.engine.speculation "$@"

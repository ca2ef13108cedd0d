#!/usr/bin/env bash
# Measures whether n-gram speculation makes streams faster, by batch and by text: a plain and a speculative real vLLM engine
# on a core each, loaded in turns. About 16 minutes; makes the engine's environment if it is missing. Argument: rounds (3).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.engine.speculation "$@"

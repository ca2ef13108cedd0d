#!/usr/bin/env bash
# What a long prompt costs the streams that decode beside it, by the size of vLLM's prefill chunks: real vLLM, three engines
# on one core loaded in turns (about 13 minutes, 14 GB; makes the engine's environment if it is missing). An argument sets
# the number of rounds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.engine.long_prompts "$@"

#!/usr/bin/env bash
# Measures what a long prompt costs the streams that decode beside it, by the size of vLLM's prefill chunks: three real
# engines on one core, loaded in turns. About 13 minutes and 14 GB; makes the engine's environment if it is missing.
# Argument: rounds (8).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.engine.long_prompts "$@"

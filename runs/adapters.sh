#!/usr/bin/env bash
# Two LoRA adapters with random weights and their base on one real vLLM engine, as three models on one pool of eight seats. By the
# engine's own count there are never more than eight streams, floors are kept, and each model answers as its engine does itself.
# About 4 minutes; makes the engine's environment if it is missing.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.fleet.adapters "$@"

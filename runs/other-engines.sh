#!/usr/bin/env bash
# Serves a model by `transformers serve` behind the kind `openai`, with the official SDKs as clients; then lets calls overflow to a
# hosted server, a stand-in with TLS and a key: each such answer says who served it, the bill is exact to the token, and a small
# budget is never exceeded. About 4 minutes; makes the engine's environment if it is missing.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.fleet.other_engines "$@"

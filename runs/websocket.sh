#!/usr/bin/env bash
# Measures what a turn of an agent costs over new connections, kept-alive HTTP and the WebSocket of the Responses API, with the
# whole history and with `previous_response_id`: overhead per turn beside the engine's own time, and bytes sent, on a scripted
# engine. Then 1,000 idle sockets: their memory, and the floors of fast streams beside them. About 4 minutes.
# Arguments: rounds (15); `vllm` for the first table alone on real vLLM, without bars.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.websocket "$@"

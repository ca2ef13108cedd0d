#!/usr/bin/env bash
# Two real vLLM engines that Ray holds on one node, and fast calls of the official SDKs of OpenAI and Anthropic: the API
# server, the core, the holding actor and both engines are killed with -9. Engines serve again without help; meanwhile fast
# calls are served as fast, downgraded or refused as their dialect says. Needs root. About 8 minutes.
source "$(dirname "$0")/prepare.bash"
install_missing redis-server:redis-server ip:iproute2
exec "$PY" -m runs.fleet.real_engines "$@"

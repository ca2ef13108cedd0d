#!/usr/bin/env bash
# Two real vLLM engines that Ray holds on one node, and fast calls of the official SDKs of OpenAI and Anthropic: the API
# server, the core, the holding actor and both engines are killed with -9. Engines serve again without help; meanwhile fast
# calls are served as fast, downgraded or refused as their dialect says. Needs root. About 8 minutes.
source "$(dirname "$0")/prepare.bash"
need=()
command -v redis-server >/dev/null || need+=(redis-server)
command -v ip >/dev/null || need+=(iproute2)
if ((${#need[@]})); then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${need[@]}"
fi
exec "$PY" -m runs.fleet.real_engines "$@"

#!/usr/bin/env bash
# Installs real clients (SDKs, frameworks, coding agents) from PyPI and npm into the cache, and drives each through a gateway
# on a scripted engine: streams, tool loops of three turns, files read and written. A row passes only if every turn was made
# with nothing set but base URL, key, model and what names a custom provider; Codex over HTTP and over the WebSocket. Exits 0
# only if no row failed and openai, anthropic, Claude Code and Codex are among those that passed. About 10 minutes on busy
# cores, as many more to install; needs Node.js 20, and Chromium for the row of the web page. Arguments: names of clients (all).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.clients.run "$@"

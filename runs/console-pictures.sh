#!/usr/bin/env bash
# The pictures of docs/how-to/console.md: the console of a gateway under load, with two real vLLM engines of SmolLM2-135M and
# four scripted replicas, at two widths, light and dark, in headless Chromium. About four minutes.
source "$(dirname "$0")/prepare.bash"
install_missing chromium:chromium
exec "$PY" -m runs.front_door.console_pictures "$@"

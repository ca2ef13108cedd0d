#!/usr/bin/env bash
# 10,000 clients that come and go at every point of a call: no seat, socket or task may be left (about a minute).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.leaks "$@"

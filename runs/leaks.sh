#!/usr/bin/env bash
# Sends 10,000 clients that leave at every point of a call: no seat, socket or task may be left. About a minute.
# Argument: clients (10,032).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.leaks "$@"

#!/usr/bin/env bash
# A fleet on three nodes of a Ray cluster holds two dispatchers, two relays and six scripted engines, behind HAProxy. Under
# load, `headway fleet up` replaces every process by another release, one at a time: no call fails, no stream is cut, and
# floors are kept. Needs root. About 5 minutes.
source "$(dirname "$0")/prepare.bash"
install_missing haproxy:haproxy redis-server:redis-server ip:iproute2
exec "$PY" -m runs.fleet.upgrade "$@"

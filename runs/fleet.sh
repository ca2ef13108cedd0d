#!/usr/bin/env bash
# Kills, stops, cuts off and drains engines, the actors that hold them, nodes and the head of a real Ray cluster 300 times
# under load: three nodes with networks of their own, 24 scripted engines, two relays, a leader and a standby, PostgreSQL,
# HAProxy. Engines come back without help, calls go around dead ones within half a second, no replica carries more than
# its limit by its own record, and the books are exact. Needs root. About an hour.
# `--faults 50 --seed 7` makes one episode again; `--kept FOLDER` goes on after an interruption.
source "$(dirname "$0")/prepare.bash"
install_missing haproxy:haproxy redis-server:redis-server ip:iproute2 postgres:postgresql
exec "$PY" -m runs.fleet.torture "$@"

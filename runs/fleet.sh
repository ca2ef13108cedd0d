#!/usr/bin/env bash
# Kills, stops, cuts off and drains engines, the actors that hold them, nodes and the head of a real Ray cluster 300 times
# under load: three nodes with networks of their own, 24 scripted engines, two relays, a leader and a standby, PostgreSQL,
# HAProxy. Engines come back without help, calls go around dead ones within half a second, no replica carries more than
# its limit by its own record, and the books are exact. Needs root. About an hour.
# `--faults 50 --seed 7` makes one episode again; `--kept FOLDER` goes on after an interruption.
source "$(dirname "$0")/prepare.bash"
need=()
[[ -x /usr/sbin/haproxy ]] || command -v haproxy >/dev/null || need+=(haproxy)
command -v redis-server >/dev/null || need+=(redis-server)
command -v ip >/dev/null || need+=(iproute2)
compgen -G "/usr/lib/postgresql/*/bin/postgres" >/dev/null || command -v postgres >/dev/null || need+=(postgresql)
if ((${#need[@]})); then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${need[@]}"
fi
exec "$PY" -m runs.fleet.torture "$@"

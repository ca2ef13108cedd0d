#!/usr/bin/env bash
# A fleet on three nodes of a Ray cluster holds two dispatchers, two relays and six scripted engines, behind HAProxy. Under
# load, `headway fleet up` replaces every process by another release, one at a time: no call fails, no stream is cut, and
# floors are kept. Needs root. About 5 minutes.
source "$(dirname "$0")/prepare.bash"
need=()
[[ -x /usr/sbin/haproxy ]] || command -v haproxy >/dev/null || need+=(haproxy)
command -v redis-server >/dev/null || need+=(redis-server)
command -v ip >/dev/null || need+=(iproute2)
if ((${#need[@]})); then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${need[@]}"
fi
exec "$PY" -m runs.fleet.upgrade "$@"

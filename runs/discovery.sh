#!/usr/bin/env bash
# Finds scripted replicas by the DNS of a real dnsmasq while 200 streams run: replicas come and go, and the name server stops,
# dies, answers with nothing and lies. No stream is lost, and no fault of DNS closes a replica. Needs root, for a resolv.conf of
# the gateway's own; installs dnsmasq with apt-get if it is missing. About 4 minutes. Arguments: changes (30), seed (1).
source "$(dirname "$0")/prepare.bash"
install_missing dnsmasq:dnsmasq-base
exec "$PY" -m runs.fleet.discovery "$@"

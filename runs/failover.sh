#!/usr/bin/env bash
# Kills, stops and cuts off relays, dispatchers and stores of a cell 500 times under load: four relays, a leader and a
# standby, 24 scripted replicas, PostgreSQL (etcd in every tenth episode), HAProxy. By the replicas' own records no fast
# stream shares a replica above its limit; no stream is cut, no call hangs, and the books are exact. About 35 minutes.
# `--faults 50 --seed 7` makes one episode again; `--kept FOLDER` goes on after an interruption.
source "$(dirname "$0")/prepare.bash"
install_missing haproxy:haproxy etcd:etcd-server postgres:postgresql
exec "$PY" -m runs.failover.run "$@"

#!/usr/bin/env bash
# Plays parts of the torture: a cell of four relays, two dispatchers, eight scripted engines, HAProxy and PostgreSQL under a
# load of all dialects, tiers and kinds of keys, with 440 faults in 40,000 streams drawn from a seed, judged by the records of
# engines, clients and PostgreSQL. Plays the next parts for 50 minutes (--minutes), adds each to runs/torture/parts.jsonl, and
# judges the sums of that ledger. --sum only judges; --seed N plays one part again; --seed N --shrink finds the smallest plan
# of a seed that fails.
source "$(dirname "$0")/prepare.bash"
install_missing haproxy:haproxy postgres:postgresql dnsmasq:dnsmasq-base gcc:gcc openssl:openssl
exec "$PY" -m runs.torture.run "$@"

#!/usr/bin/env bash
# Plays parts of the torture on two real vLLM engines (SmolLM2-135M, one to a core) behind a cell of three relays, two
# dispatchers, HAProxy and PostgreSQL, under a load of all dialects: per part at least 500 streams, 4 engines killed with -9 and
# 22 stopped for up to 8 s. A recorder in front of each engine is its witness. Plays the next parts for 30 minutes (--minutes),
# adds each to runs/torture/parts_on_vllm.jsonl, and judges the sums of that ledger. --sum only judges; --seed N plays one part.
source "$(dirname "$0")/prepare.bash"
install_missing haproxy:haproxy postgres:postgresql
exec "$PY" -m runs.torture.on_vllm "$@"

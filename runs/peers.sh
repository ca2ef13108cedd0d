#!/usr/bin/env bash
# Headway beside LiteLLM's proxy, smg, vllm-router and HAProxy, on the same scripted engine under the same load (about
# 10 minutes). Headway's policy is compiled, once for each state of the source (2 minutes). The peers from PyPI get
# environments of their own outside the checkout, made if they are missing (6 more minutes); HAProxy is installed with
# apt-get if it is missing. Every row is printed, whoever leads. Exits 0 only if all rows are there and the bars hold
# against LiteLLM and, for CPU per token, against the routers in Rust. An argument sets the number of rounds.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
install_missing haproxy:haproxy
exec "$PY" -m runs.peers.compare "$@"

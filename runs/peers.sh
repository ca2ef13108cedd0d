#!/usr/bin/env bash
# Headway beside LiteLLM's proxy, on the same scripted engine under the same load (about 6 minutes; LiteLLM gets an
# environment of its own outside the checkout, made if it is missing). Exits 0 only if both bars hold. An argument sets
# the number of rounds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.peers.compare "$@"

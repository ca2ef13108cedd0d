#!/usr/bin/env bash
# What the prefix index costs core: CPU per call with keys, as in the Mooncake trace, and without, at 1,000 replicas and a million blocks, and its
# memory. Compiles the policy first; about 3 minutes.
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.prefixes.cost "$@"

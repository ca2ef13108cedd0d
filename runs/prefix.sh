#!/usr/bin/env bash
# What the prefix index finds in engines' caches. Simulated: Mooncake's conversation trace on 32 replicas, beside last-seen
# affinity, consistent hashing, round robin, and one cache as large as all together. On real vLLM (SmolLM2-135M on two
# engines): 40 conversations of 8 turns, four tenants, beside round robin. About 30 minutes.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.prefixes.run "$@"

#!/usr/bin/env bash
# Streams that outlive their engine, on real vLLM (SmolLM2-135M on two engines, one to a core) with the official SDK: an
# engine is killed with -9 under 16 streams, four of them with a tool, 20 times; then one is drained of 32 streams, and
# both are restarted under load. Greedy texts are held beside two unbroken runs, those at temperature 1 by a two-sample
# test with a control, usage and bills beside what was delivered. About 30 minutes. Argument: kills (20).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.continuation.kills "$@"

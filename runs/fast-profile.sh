#!/usr/bin/env bash
# Fast streams on real vLLM (SmolLM2-135M) where the light replica speculates with n-grams as a profile of its own, beside
# a plain light replica and standard streams, in phases that alternate. The standard replica is full: the smallest batch
# within 5 % of its peak throughput. About 16 minutes on two quiet cores; makes the engine's environment if it is missing.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.express.profiles "$@"

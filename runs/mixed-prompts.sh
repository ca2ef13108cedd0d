#!/usr/bin/env bash
# Measures fast mode on real vLLM with mixed prompts of 200 and 4,000 tokens and little memory: two replicas on two cores,
# saturated with standard calls, and fast streams beside them. Counts the engines' preemptions and the floors kept, beside
# a control without a gateway and one whose curve has no context. About 12 minutes; makes the engine's environment if it is
# missing. Argument: fast streams (40).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.engine.mixed_prompts "$@"

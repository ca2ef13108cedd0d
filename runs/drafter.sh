#!/usr/bin/env bash
# The student as drafter of the full model, on real vLLM: acceptance on held-out prompts, tok/s with and without it and with
# n-gram at 1 to 8 streams, what is chosen by batch, and whether answers stay the same (about 60 minutes after
# runs/distill.sh, whose student it takes or makes; resumable). An argument sets the number of rounds.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.students.drafter "$@"

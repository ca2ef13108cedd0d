#!/usr/bin/env bash
# Uses the student as drafter of the full model on real vLLM: acceptance on held-out prompts, tok/s with it, without it and
# with n-gram drafts at 1 to 8 streams, what is chosen by batch, and whether sampled answers keep their distribution. About
# 60 minutes after runs/distill.sh, whose student it takes or makes. Finished stages are kept. Argument: rounds (3).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.students.drafter "$@"

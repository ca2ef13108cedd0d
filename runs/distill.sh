#!/usr/bin/env bash
# Distils a student from nothing to a published model on real vLLM: tasks, teacher, its answers, cut, training, int8,
# mistakes, speeds, card. About 2.5 hours. Finished stages are kept in the cache for the same code and inputs, so that an
# interrupted run goes on. `--tiny` tries every stage with next to no data; `--until STAGE` stops after a stage.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.students.distill "$@"

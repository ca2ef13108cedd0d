#!/usr/bin/env bash
# Trick two from nothing to a published student, on real vLLM: tasks, teacher, its answers, cut, training, int8, mistakes,
# speeds, card (about 2.5 hours; resumable: finished stages are kept in the cache). --tiny tries every stage, showing nothing.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.students.distill "$@"

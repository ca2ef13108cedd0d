#!/usr/bin/env bash
# Gives Headway hostile input. In process: a seeded mutator and hypothesis for each parser. Live: hostile clients and a
# hostile engine around one gateway, which is restarted twice. Nothing may leak, fail or be lost. At most an hour.
# Arguments: inputs of parsers (10,000,000), examples of hypothesis for each (20,000), requests (300,000), seed (1).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.hostile.run "$@"

#!/usr/bin/env bash
# Compares the express rule that moves streams to make replicas light at once with the rule that waits for them to end, in
# virtual time, with the demand of runs/express-rule.sh and prompts that take time. Compiles the policy first; about 15
# minutes. Argument: seeds (5).
source "$(dirname "$0")/prepare.bash"
source runs/compiled.bash
exec "$PY" -m runs.express.moves "$@"

#!/usr/bin/env bash
# Runs the end-to-end tests on real vLLM as `make e2e` does, but with two relays in each gateway that they start. About
# as long as `make e2e`. Arguments: passed to pytest.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.cell.end_to_end "$@"

#!/usr/bin/env bash
# What an open console costs: the CPU of a gateway with a ledger that relays 64 streams, with and without a viewer that asks
# for the console's pages as often as the page does, in 21 alternating pairs. About five minutes. Argument: pairs (21).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.console_cost "$@"

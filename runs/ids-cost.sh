#!/usr/bin/env bash
# What it costs a relay to keep the token ids of its streams, so that they can go on at another engine: CPU of a gateway that
# relays 64 scripted streams which can, beside 64 which cannot, in alternating pairs. About five minutes. Argument: pairs (21).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.ids_cost "$@"

#!/usr/bin/env bash
# Changes headway.toml a thousand times under load, a tenth of them so that it is not valid: seats, curves, tiers, prices,
# replicas, aliases and models, on eight scripted replicas; then again with two relays. No stream is lost, no replica carries
# more streams than its seats by its own record, and every change is reported. About 10 minutes. Arguments: changes (1000),
# seed (1).
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.fleet.reload "$@"

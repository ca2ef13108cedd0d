#!/usr/bin/env bash
# The relay of this checkout beside that of another commit (about 5 minutes): CPU per relayed token, in alternating turns on
# one scripted engine. Exits 0 only if the median ratio is within its bar. The first argument names the commit (default:
# version 0.1), the second sets the number of pairs.
source "$(dirname "$0")/prepare.bash"
exec "$PY" -m runs.gateway.relay_change "$@"

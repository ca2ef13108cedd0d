#!/usr/bin/env bash
# Lets a fleet on a real Ray cluster follow a day of demand that lasts ten minutes, with the shape of Azure's conversation
# trace: scripted engines that take a few seconds to start, one gateway. Compares its replica-hours with those of the
# smallest fixed fleet that serves the same calls in the simulator. Needs root. About 13 minutes. Argument: seed (1).
source "$(dirname "$0")/prepare.bash"
need=()
command -v redis-server >/dev/null || need+=(redis-server)
command -v ip >/dev/null || need+=(iproute2)
if ((${#need[@]})); then
    apt-get update -qq
    apt-get install -y -qq --no-install-recommends "${need[@]}"
fi
exec "$PY" -m runs.fleet.scaling_live "$@"

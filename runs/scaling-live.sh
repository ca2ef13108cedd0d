#!/usr/bin/env bash
# Lets a fleet on a real Ray cluster follow a day of office hours that lasts ten minutes: scripted engines that take a few
# seconds to start, about 27 at the peak, and one gateway. Compares its replica-hours with those of the smallest fixed fleet
# that serves the same calls in the simulator. Needs root. About 15 minutes. Argument: seed (1).
source "$(dirname "$0")/prepare.bash"
install_missing redis-server:redis-server ip:iproute2
exec "$PY" -m runs.fleet.scaling_live "$@"

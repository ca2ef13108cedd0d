#!/usr/bin/env bash
# Overloads a cell that can serve 40 calls a second, up to ten times: by Poisson arrivals, by bursts, by a storm of retries
# (partly the unchanged OpenAI SDK's), by slow readers, and by one tenant's flood. Two relays, two dispatchers, ten
# scripted replicas, PostgreSQL, HAProxy. Measures what still gets through in time, how soon the rest is refused, whether
# fast floors are kept, how soon all is normal again, and whether the books are exact. About ten minutes.
source "$(dirname "$0")/prepare.bash"
install_missing haproxy:haproxy postgres:postgresql
exec "$PY" -m runs.torture.overload "$@"

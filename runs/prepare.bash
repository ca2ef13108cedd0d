# Sourced by every run: makes the gateway's environment if it is missing and prints what the machine is. A run exits with 0
# if all its bars hold, with 1 if one is missed, and with 3 if this machine is too slow or too busy to judge.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --silent setup
PY=.venv/bin/python
echo "machine: $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GB", $2/1048576}' /proc/meminfo)," \
     "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(uname -sr), $($PY --version)"
echo "date: $(date -u +%Y-%m-%dT%H:%MZ), commit: $(git rev-parse --short HEAD 2>/dev/null || echo none)"

# Sourced by the runs: makes the gateway's environment if it is missing and says what the machine is.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --silent setup
PY=.venv/bin/python
echo "machine: $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GB", $2/1048576}' /proc/meminfo)," \
     "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(uname -sr), $($PY --version)"
echo "date: $(date -u +%Y-%m-%dT%H:%MZ), commit: $(git rev-parse --short HEAD 2>/dev/null || echo none)"

# Sourced by every run: makes the gateway's environment if it is missing and prints what the machine is. A run exits with 0
# if all its bars hold, with 1 if one is missed, and with 3 if this machine is too slow or too busy to judge.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
make --silent setup
PY=.venv/bin/python
# Installs Debian's packages of programs that are missing: `install_missing PROGRAM:PACKAGE ...`.
install_missing() {
    local pair path=$PATH:/usr/sbin folder need=()
    for folder in /usr/lib/postgresql/*/bin; do path+=:$folder; done
    for pair in "$@"; do
        (PATH=$path; command -v "${pair%%:*}") >/dev/null || need+=("${pair#*:}")
    done
    if ((${#need[@]})); then
        apt-get update -qq
        apt-get install -y -qq --no-install-recommends "${need[@]}"
    fi
}
echo "machine: $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GB", $2/1048576}' /proc/meminfo)," \
     "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(uname -sr), $($PY --version)"
echo "date: $(date -u +%Y-%m-%dT%H:%MZ), commit: $(git rev-parse --short HEAD 2>/dev/null || echo none)"

#!/usr/bin/env bash
# The README as a new user follows it: its commands, taken from the file, in a fresh clone and a fresh environment, down to
# the first finished race of `headway demo --scripted`, then Ctrl-C (about a minute). The clone is of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
echo "machine: $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GB", $2/1048576}' /proc/meminfo), $(uname -sr), $(python3 --version)"
echo "date: $(date -u +%Y-%m-%dT%H:%MZ), commit: $(git rev-parse --short HEAD)"
exec python3 -m runs.front_door.newcomer

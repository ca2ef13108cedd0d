#!/usr/bin/env bash
# The tutorial as a new user follows it: every command of docs/tutorial.md, pasted line by line into terminals, in a fresh
# clone, a fresh environment and an empty cache: the scripted race, the real demo to a fast answer with its proof, then
# two engines, a floor, calls with both SDKs, and the bill. About a quarter of an hour, of which a third installs. Needs
# the ports 8000, 9101 and 9102. The clone is of the last commit.
set -euo pipefail
cd "$(dirname "$0")/.."
command -v curl >/dev/null || { apt-get update -qq; apt-get install -y -qq --no-install-recommends curl; }
echo "machine: $(nproc) cores, $(awk '/MemTotal/ {printf "%.0f GB", $2/1048576}' /proc/meminfo)," \
     "$(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -1), $(uname -sr), $(python3 --version)"
echo "date: $(date -u +%Y-%m-%dT%H:%MZ), commit: $(git rev-parse --short HEAD)"
exec python3 -m runs.front_door.tutorial

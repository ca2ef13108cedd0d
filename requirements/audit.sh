#!/usr/bin/env bash
# Looks up known vulnerabilities of every locked package; `make audit` runs this. Exits with 1 if there are any, or if a
# package could not be looked up: without --strict pip-audit calls what it skipped clean.
set -uo pipefail
cd "$(dirname "$0")/.."
copy=$(mktemp)
trap 'rm -f "$copy"' EXIT
bad=0
for lock in requirements/{base,postgres,pictures,eval,distill,dev,tools,docs}.txt headway/{local/engine,distill/training}.txt runs/peers/*.txt; do
    echo "$lock"
    sed 's/+cpu / /' "$lock" > "$copy"  # advisories name the release, not its CPU build
    pip-audit --strict --progress-spinner off --disable-pip --require-hashes -r "$copy" || bad=1
done
exit $bad

#!/usr/bin/env bash
# Writes the locks: exact versions and hashes of all that is ever installed for Headway. `make lock` runs this.
#
#   make lock                              add what was added to pyproject.toml or an .in file, drop what was dropped
#   make lock ARGS='-P uvicorn'            and take the newest uvicorn that pyproject.toml allows
#   make lock ARGS=--upgrade               and take the newest of everything
#
# requirements/NAME.txt is the package with the extra NAME; dev.txt comes first, and the others take their versions from
# it. The other locks are for environments of their own: the CPU engine's, the training's, GuideLLM's and the
# documentation's, and the tools that this script uses. Each lock is for CPython 3.11 and newer; markers say what only some of them install. A version that is
# locked stays unless it is asked to change.
set -euo pipefail
cd "$(dirname "$0")/.."

# No index address may get into a lock: whoever installs brings their own, and the hashes say whether it is honest.
lock() {
    uv pip compile --quiet --no-config --universal --python-version 3.11 --fork-strategy fewest --generate-hashes \
        --no-annotate --no-emit-index-url --no-emit-find-links --custom-compile-command 'make lock' "$@"
}

lock pyproject.toml --extra dev "$@" -o requirements/dev.txt
lock pyproject.toml -c requirements/dev.txt "$@" -o requirements/base.txt
for extra in postgres otel kv-events pictures eval ray distill; do
    lock pyproject.toml --extra "$extra" -c requirements/dev.txt "$@" -o "requirements/$extra.txt"
done
lock requirements/tools.in "$@" -o requirements/tools.txt
lock requirements/docs.in "$@" -o requirements/docs.txt

for name in headway/local/engine headway/distill/training runs/peers/guidellm; do
    lock "requirements/$(basename "$name").in" --excludes requirements/excluded.txt "$@" -o "$name.txt"
    grep -v '^#' requirements/torch-cpu.txt >> "$name.txt"
done

#!/usr/bin/env bash
# Writes requirements/sbom.cdx.json (CycloneDX): the package and everything that it installs with all extras for users.
# `make lock` and `make sbom` run this. Hashes are in the locks; here a component is a name, a version and a package URL.
set -euo pipefail
cd "$(dirname "$0")/.."
# cyclonedx-py does not follow the version to headway/__init__.py.
project=$(mktemp)
trap 'rm -f "$project"' EXIT
version=$(sed -nE 's/^__version__ = (".+")$/\1/p' headway/__init__.py)
sed "s/^dynamic = .*/version = $version/" pyproject.toml >"$project"
(cd requirements && sed -nE 's/^([a-z0-9][^ ]*==[^ ]+).*/\1/p' base.txt postgres.txt otel.txt kv-events.txt pictures.txt eval.txt ray.txt distill.txt) |
    LC_ALL=C sort -u |
    PYTHONWARNINGS=ignore cyclonedx-py requirements --pyproject "$project" --mc-type application --output-reproducible \
        --of JSON -o requirements/sbom.cdx.json -

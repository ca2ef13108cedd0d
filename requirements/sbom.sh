#!/usr/bin/env bash
# Writes requirements/sbom.cdx.json (CycloneDX): the package and everything that it installs with all extras for users.
# `make lock` and `make sbom` run this. Hashes are in the locks; here a component is a name, a version and a package URL.
set -euo pipefail
cd "$(dirname "$0")/.."
(cd requirements && sed -nE 's/^([a-z0-9][^ ]*==[^ ]+).*/\1/p' base.txt postgres.txt pictures.txt eval.txt ray.txt distill.txt) |
    LC_ALL=C sort -u |
    PYTHONWARNINGS=ignore cyclonedx-py requirements --pyproject pyproject.toml --mc-type application --output-reproducible \
        --of JSON -o requirements/sbom.cdx.json -

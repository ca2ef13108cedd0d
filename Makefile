# What CI runs, and what you run: `make` shows the list.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

TOOLS := .tools/bin
SPHINX := .docs/bin/sphinx-build
PIP_LOCKED := install --quiet --disable-pip-version-check --only-binary :all: --require-hashes

.PHONY: help setup engine check test clients browser page e2e nightly docs format lock audit sbom dist checklist
help:  ## this list
	@grep -E '^[a-z0-9]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /: /'

$(BIN)/headway: pyproject.toml requirements/dev.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip $(PIP_LOCKED) -r requirements/dev.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

setup: $(BIN)/headway  ## the gateway's environment, with what tests need

engine: setup  ## the CPU engine's environment and the demo's model (once, outside the checkout: 4 GB, minutes)
	$(BIN)/headway demo --prepare-only

check: setup  ## lint, types, and the rules of the house
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py tests/test_docs.py tests/test_locks.py

test: setup  ## everything that needs no model and no installed client
	$(BIN)/pytest -q -m 'not engine and not clients and not docs and not browser' -n auto --dist worksteal

# A worker for each client, so that the timeout of one test bounds them all: installing is most of the time.
clients: setup  ## what must be installed: the SDKs, Claude Code and Codex at pinned versions, the wheel, and the console's build (needs npm; 4 minutes at most)
	$(BIN)/pytest -q -m clients -n 4 --timeout 240 --durations 4 tests/runs/test_clients.py tests/test_release.py tests/console/test_page.py

console/node_modules/.package-lock.json: console/package-lock.json
	npm ci --prefix console
	@touch $@

page: console/node_modules/.package-lock.json  ## check, test and build the console's page (needs npm)
	npm run --prefix console check
	npm test --prefix console
	npm run --prefix console build

browser: setup console/node_modules/.package-lock.json  ## the console in Chromium, on a running gateway (needs chromium and npm)
	$(BIN)/pytest -q -m browser tests/console/test_browser.py

e2e: engine  ## the tests on real vLLM
	$(BIN)/pytest -q -m engine --timeout 600

nightly: setup  ## a million steps of random walks over core, and 200,000 WebSocket frames (about 9 minutes)
	HEADWAY_WALKS=17000 $(BIN)/pytest -q tests/core/test_walk.py
	HEADWAY_FRAMES=200000 $(BIN)/pytest -q --timeout 600 tests/gateway/test_socket_bounds.py -k generated

$(SPHINX): requirements/docs.txt
	$(PYTHON) -m venv .docs
	.docs/bin/pip $(PIP_LOCKED) -r requirements/docs.txt
	@touch $@

docs: setup $(SPHINX)  ## write the reference from the code, build the site into site/, check its links, run its examples
	$(BIN)/python -m headway.cli.reference docs/reference
	$(SPHINX) --quiet --fail-on-warning --keep-going --jobs auto --fresh-env -c docs -d .docs/pages . site
	$(BIN)/python -m tests.docs.site site
	$(BIN)/pytest -q -m docs -n 2 --dist worksteal tests/docs
	$(BIN)/python -m tests.docs.pages

format: setup  ## put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(TOOLS)/uv: requirements/tools.txt
	$(PYTHON) -m venv .tools
	$(TOOLS)/pip $(PIP_LOCKED) -r requirements/tools.txt
	@touch $@

lock: $(TOOLS)/uv  ## write the locks and the SBOM again (ARGS=--upgrade: with the newest versions)
	PATH="$(CURDIR)/$(TOOLS):$$PATH" requirements/lock.sh $(ARGS)
	PATH="$(CURDIR)/$(TOOLS):$$PATH" requirements/sbom.sh

audit: $(TOOLS)/uv  ## look up known vulnerabilities of all that is locked (needs PyPI's advisories)
	PATH="$(CURDIR)/$(TOOLS):$$PATH" requirements/audit.sh

sbom: $(TOOLS)/uv  ## write requirements/sbom.cdx.json from the locks
	PATH="$(CURDIR)/$(TOOLS):$$PATH" requirements/sbom.sh

dist: setup  ## build the source distribution and the wheels into dist/ (needs a C compiler; minutes)
	release/build.sh

checklist: setup $(TOOLS)/uv  ## what must hold before a release (ARGS='version figures': these steps only)
	$(BIN)/python -m release.checklist $(ARGS)

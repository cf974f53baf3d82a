# `make swarm` and `make test` are all that a newcomer needs; `make help` lists the rest.
# PYTHON=python3.12 chooses the interpreter, ARGS="--peers 6" is handed to `shoal up`.

PYTHON ?= $(shell for python in python3 python3.14 python3.13 python3.12 python3.11; do \
    $$python -c 'import sys; assert sys.version_info >= (3, 11)' 2>/dev/null && echo $$python && break; done)
PYTHON := $(PYTHON)
CC ?= cc
VENV := .venv
BIN := $(VENV)/bin
DIST := dist
STAMP := $(VENV)/.installed
STAMP_DEV := $(VENV)/.installed-dev

# A run of the tests starts a hundred processes; compiled files are kept for them, whatever the environment says.
export PYTHONDONTWRITEBYTECODE :=

# Homebrew on Apple silicon lies outside the compiler's default search path.
ifeq ($(shell uname -s),Darwin)
BREW := $(shell brew --prefix 2>/dev/null)
export CFLAGS := $(CFLAGS) -I$(BREW)/include
export LDFLAGS := $(LDFLAGS) -L$(BREW)/lib
endif

.PHONY: help swarm experts diffusion install wheel test test-tiers test-swarms netlab test-all lint format bench-peers preflight clean

help:
	@echo 'make swarm     train a model with four peers on this machine (ARGS="--peers 6" and so on)'
	@echo 'make experts   train experts apart with four peers, and compare them with one dense model'
	@echo 'make diffusion experts that paint digits, trained by four peers, against one network of equal compute'
	@echo 'make test      every test that is not slow and runs on any machine'
	@echo 'make test-tiers  those that need a browser, network namespaces or an NVIDIA GPU'
	@echo 'make test-swarms  real swarms: one of each method that loses a peer, and the Compose file on a container engine'
	@echo 'make netlab    the laboratory of networks alone, with the tables that it prints (root, iproute2, nftables)'
	@echo 'make test-all  all of them, and the slow ones'
	@echo 'make lint      ruff and mypy'
	@echo 'make format    let ruff format and fix what it can'
	@echo 'make bench-peers  install what benchmarks/ compares with, in environments of their own'
	@echo 'make install   set up $(VENV) with the development tools, nothing else'
	@echo 'make wheel     build dist/: what pip, pipx and uv need to install Shoal where there is no compiler'
	@echo 'make clean     remove $(VENV) and what builds and tests left behind'

swarm: $(STAMP)
	$(BIN)/shoal up $(ARGS)

experts: $(STAMP)
	$(BIN)/python benchmarks/experts.py $(ARGS)

diffusion: install
	$(BIN)/python benchmarks/diffusion.py $(ARGS)

install: $(STAMP_DEV)

# Beside Shoal's wheel, which fits every machine, that of the one dependency which is on the index as source only; it is
# good for this kind of machine and version of Python.
wheel: $(BIN)/python
	rm -rf build $(DIST)/*.whl
	$(BIN)/python -m pip wheel --disable-pip-version-check --no-deps -c constraints.txt --wheel-dir $(DIST) . fastecdsa

# libp2p brings a C extension that is compiled here. One sentence says what is missing for it, and make stops.
preflight:
	@need() { echo "Shoal needs $$1: '$$2' (Debian and Ubuntu)," \
	    "'$$3' (Fedora) or '$$4' (macOS) installs that." >&2; exit 1; }; \
	compiled='to compile fastecdsa, on which libp2p depends'; \
	compiles() { printf '%s\n' "$$@" 'int main(void) { return 0; }' \
	    | $(CC) $(CFLAGS) -I"$$include" -x c -fsyntax-only - 2>/dev/null; }; \
	apt='sudo apt-get install'; dnf='sudo dnf install'; python=$(notdir $(PYTHON)); brewed='brew install python@3.12'; \
	test -n "$$python" && $(PYTHON) -c 'import sys; assert sys.version_info >= (3, 11)' 2>/dev/null \
	    || need 'Python 3.11 or newer' "$$apt python3.11 python3.11-venv python3.11-dev" "$$dnf python3.12-devel" "$$brewed"; \
	$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	    || need "Python's venv module" "$$apt $$python-venv" "$$dnf $$python" "$$brewed"; \
	include=$$($(PYTHON) -c 'import sysconfig; print(sysconfig.get_path("include"))'); \
	compiles || need "a C compiler $$compiled" "$$apt build-essential" "$$dnf gcc" 'xcode-select --install'; \
	compiles '#include <Python.h>' \
	    || need "the headers of Python $$compiled" "$$apt $$python-dev" "$$dnf $$python-devel" "$$brewed"; \
	compiles '#include <gmp.h>' \
	    || need "the headers of libgmp $$compiled" "$$apt libgmp-dev" "$$dnf gmp-devel" 'brew install gmp'

$(BIN)/python:
	@$(MAKE) --no-print-directory preflight
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	@$(MAKE) --no-print-directory preflight
	@echo 'Installing Shoal into $(VENV); torch is large, so the first time may take minutes.'
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e .
	@touch $@

# What only developers need is more than twice as many packages again.
$(STAMP_DEV): $(STAMP)
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

lint: install
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: install
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Tiers that need what a machine may lack: a browser, a container engine, network namespaces, a GPU. Without it they are
# skipped with a message.
TIERS := $(addprefix tests/,browser compose netlab gpu)
# Tests run side by side, the longest first. Three at once on two cores: many wait for processes, or for a clock.
TOGETHER := --numprocesses=3 --dist=load --maxschedchunk=1
# Slow ones that run one after the other: they use every core, look at the whole machine, or compare with a busy one.
ALONE := $(addprefix tests/integration/test_,death_in_round.py leaks.py resume.py) tests/netlab/test_soak.py

test: install
	$(BIN)/pytest $(TOGETHER) $(TIERS:%=--ignore=%) -m 'not slow'

# File by file and two at once: nodes behind routers wait for most of the time.
test-tiers: install
	$(BIN)/pytest $(TIERS) -m 'not compose and not patient' --numprocesses=2 --dist=loadfile

# File by file, as tests share daemons (tests/integration/swarm.py). The containers come first: they take longest.
test-swarms: install
	$(BIN)/pytest tests/compose tests/integration -m 'swarm or compose' \
	    --numprocesses=2 --dist=loadfile --no-loadscope-reorder

netlab: install
	$(BIN)/pytest tests/netlab -s -m 'not slow'

test-all: install
	$(BIN)/pytest $(TOGETHER) $(ALONE:%=--ignore=%) --ignore=tests/compose --hypothesis-profile=thorough
	$(BIN)/pytest $(ALONE) tests/compose

bench-peers: benchmarks/.hivemind/.installed

# hivemind wants other versions of what Shoal uses; with numpy 2.4 its 8-bit codec fails.
benchmarks/.hivemind/.installed: constraints.txt
	$(PYTHON) -m venv benchmarks/.hivemind
	benchmarks/.hivemind/bin/python -m pip install --disable-pip-version-check -c constraints.txt 'hivemind==1.1.12' 'numpy<2.4' torch
	@touch $@

clean:
	rm -rf $(VENV) benchmarks/.hivemind benchmarks/.p2pd build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

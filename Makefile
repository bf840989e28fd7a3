# make demo    what jtprim does, on this machine; StableHLO files in build/demo
# make test    the tests that need no GPU
# make check   format, lint, types and those tests
# make bench   the benchmarks
# make docs    docs/operations.md, the table of the portable lowering's operations
# make collections   docs/collections.md: published packages' kernels on the CPU, beside PyTorch
# make clean   removes what these made
#
# Each makes a virtual environment of its own at first use. PYTHON, VENV, PINS and PYTEST_ARGS may be
# given: make test PYTHON=python3.12 VENV=.venv-old PINS='jax==0.10.2 triton==3.6.0'

PYTHON ?= python3
VENV ?= .venv
PINS ?=
PYTEST_ARGS ?=

# Beside a GPU, JAX's plugin for it is installed too.
ifneq ($(shell nvidia-smi -L 2>/dev/null),)
  EXTRAS := test,gpu
else ifneq ($(wildcard /dev/kfd),)
  EXTRAS := test,rocm
else
  EXTRAS := test
endif

BIN := $(VENV)/bin
INSTALLED := $(VENV)/installed
TOOLS := $(VENV)/installed-tools
PLOTTING := $(VENV)/installed-plotting

# PyTorch asks for a Triton of its own, for which the supported one is put in place.
COLLECTIONS := .venv-collections
TORCH ?= torch
PACKAGES := liger-kernel==0.8.5 fla-core==0.6.0 conch-triton-kernels==1.3 lightning-attn==0.0.5 \
  cut-cross-entropy==25.1.1

.PHONY: demo test check style bench docs collections clean

demo: $(INSTALLED)
	$(BIN)/python -m examples.demo

test: $(INSTALLED)
	JAX_PLATFORMS=cpu $(BIN)/python -m pytest -n 2 $(PYTEST_ARGS)

check: style test

style: $(TOOLS)
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy

bench: $(PLOTTING)
	$(BIN)/python -m benchmarks.run

docs: $(INSTALLED)
	$(BIN)/python docs/operations.py

collections: $(COLLECTIONS)/installed
	JAX_PLATFORMS=cpu $(COLLECTIONS)/bin/python -m tests.collections

clean:
	rm -rf .venv* build dist .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -e '.[$(EXTRAS)]' $(PINS)
	touch $@

$(TOOLS): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -e '.[dev]' $(PINS)
	touch $@

$(PLOTTING): $(INSTALLED)
	$(BIN)/python -m pip install --quiet -e '.[bench]' $(PINS)
	touch $@

$(COLLECTIONS)/installed: pyproject.toml
	$(PYTHON) -m venv $(COLLECTIONS)
	$(COLLECTIONS)/bin/python -m pip install --quiet '$(TORCH)' einops packaging
	$(COLLECTIONS)/bin/python -m pip install --quiet --no-deps $(PACKAGES)
	$(COLLECTIONS)/bin/python -m pip install --quiet --upgrade -e . triton $(PINS)
	touch $@

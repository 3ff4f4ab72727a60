# The workshop. `make` alone lists what there is.
#
# Needs python3 (3.11 or newer), make, git, and a way to the Python package index. Each target makes its own
# environment first, and again whenever pyproject.toml has changed.

# Which Python to use. The plain `make test` works in .venv; `PYTHON=python3.12 make test` in .venv-3.12, beside it.
PYTHON ?= python3
# More words for pytest, e.g. `make test ARGS="-k floors -x"`.
ARGS ?=

# pyenv's python3.12 starts only where 3.12 is chosen: asking for it by name is choosing it. Others do not read the variable.
CHOSEN := $(patsubst python%,%,$(filter python3.%,$(PYTHON)))
RUN_PYTHON := $(if $(CHOSEN),PYENV_VERSION=$(CHOSEN) )"$(PYTHON)"
VERSION := $(shell $(RUN_PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null)
SUFFIX := $(if $(filter file,$(origin PYTHON)),,-$(VERSION))
ENV := .venv$(SUFFIX)
DEMO := .venv-demo$(SUFFIX)
DOCS := .venv-docs$(SUFFIX)
TORCH := .venv-torch$(SUFFIX)
GPU := .venv-gpu$(SUFFIX)
# One stamp per Python version: when python3 becomes another one, the environment is made anew.
ENV_READY := $(ENV)/.ready-$(VERSION)
DEMO_READY := $(DEMO)/.ready-$(VERSION)
DOCS_READY := $(DOCS)/.ready-$(VERSION)
TORCH_READY := $(TORCH)/.ready-$(VERSION)
GPU_READY := $(GPU)/.ready-$(VERSION)

# 0.13.8: knows `uv pip install --group`, and what this file was tried with. A uv on the PATH that knows it will do.
UV_VERSION := 0.13.8
UV := $(shell uv pip install --help 2>/dev/null | grep -q -e '--group' && command -v uv || echo .venv-tools/bin/uv)
# Use the Python that was asked for, or say that it is not there; never fetch another one.
export UV_PYTHON_DOWNLOADS := never
# An environment that happens to be active is not the one we mean.
unexport VIRTUAL_ENV PYTHONHOME
# Images of containers set them. Without bytecode each process of each test compiles all that it imports: twice the time.
unexport PYTHONDONTWRITEBYTECODE PYTHONUNBUFFERED

.DEFAULT_GOAL := help
.PHONY: help demo env test test-rest test-all check cluster node node-build controllers test-node cluster-if-it-can-be-had test-torch test-gpu bench bench-compare nightly docs docs-serve clean python-is-there

help:
	@echo 'make demo      train a small Keras model on handwritten digits, as a detached job on this machine'
	@echo 'make test      units, contracts, architecture, and a flow for each promise; minutes'
	@echo 'make test-all  the whole suite, with Kubernetes where Go is found; half an hour'
	@echo 'make check     style, types, the floors of the architecture, spelling; under a minute'
	@echo 'make cluster   build the Kubernetes that some tests run on, once, into a cache outside this folder; minutes'
	@echo 'make node      build kubelet, containerd and CoreDNS once, and run them beside that Kubernetes until Ctrl-C; root, Debian'
	@echo 'make controllers  build those of Kueue, LeaderWorkerSet and Volcano once, for the tests that need them; minutes'
	@echo 'make test-node the tests of Kubernetes that matter most, on such a node; part of make test-all'
	@echo 'make test-torch  the examples and pages with PyTorch, PEFT and Weights & Biases; 6 GB, and some minutes'
	@echo 'make test-gpu  jobs of this machine and of a cluster on the NVIDIA GPU that is here; 9 GB, and some minutes'
	@echo 'make bench     measure, each figure beside its baseline; ten minutes on two quiet cores'
	@echo 'make bench-compare BASE=C   measure this commit and commit C in turns, and print the ratios'
	@echo 'make nightly   the tests that take minutes'
	@echo 'make docs      build the documentation site; docs-serve shows it, and builds it again after each edit'
	@echo 'make clean     remove the environments and everything else that was made here'
	@echo
	@echo 'PYTHON=python3.12 make test   uses that Python, in an environment of its own'
	@echo 'make test ARGS="-k floors"    hands more words to pytest'

# One sentence instead of a traceback from deep inside an installer.
python-is-there:
	@test -n "$(VERSION)" || { \
	  echo "kinetic: $(PYTHON) does not start here; install Python 3.11 or newer, or name one: PYTHON=/path/to/python3.12 make $(MAKECMDGOALS)" >&2; exit 1; }
	@$(RUN_PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "kinetic: needs Python 3.11 or newer, and $(PYTHON) is $(VERSION); name a newer one: PYTHON=/path/to/python3.12 make $(MAKECMDGOALS)" >&2; exit 1; }

.venv-tools/bin/uv: | python-is-there
	@echo 'kinetic: fetching uv into .venv-tools' >&2
	@$(RUN_PYTHON) -m venv --clear .venv-tools || { \
	  echo "kinetic: $(PYTHON) cannot make virtual environments; install its venv module (Debian, Ubuntu: apt install python3-venv) or uv" >&2; \
	  rm -rf .venv-tools; exit 1; }
	@.venv-tools/bin/python -m pip install --quiet --disable-pip-version-check 'uv==$(UV_VERSION)'

# $(call make_environment,FOLDER,GROUPS): a Python of the right version stays, so that a changed pin costs seconds.
define make_environment
@echo 'kinetic: preparing $(1) (Python $(VERSION))' >&2
@test "`$(1)/bin/python -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null`" = '$(VERSION)' || \
  $(UV) venv --quiet --clear --python "`$(RUN_PYTHON) -c 'import sys; print(sys.executable)'`" $(1)
@$(UV) pip install --quiet --python $(1)/bin/python --editable . $(2)
@touch $@
endef

$(ENV_READY): pyproject.toml | python-is-there $(UV)
	$(call make_environment,$(ENV),--group test --group check)

$(DEMO_READY): pyproject.toml | python-is-there $(UV)
	$(call make_environment,$(DEMO),--group demo)

$(DOCS_READY): pyproject.toml | python-is-there $(UV)
	$(call make_environment,$(DOCS),--group docs)

$(TORCH_READY): pyproject.toml | python-is-there $(UV)
	$(call make_environment,$(TORCH),--group test --group torch)

$(GPU_READY): pyproject.toml | python-is-there $(UV)
	$(call make_environment,$(GPU),--group test --group gpu)

demo: $(DEMO_READY)
	@$(DEMO)/bin/python examples/digits.py
	@$(DEMO)/bin/kinetic jobs list --all

# One process for each core. tests/promises.py names the flows that `make test` runs.
PYTEST := $(ENV)/bin/python -m pytest --dist loadgroup -n logical
# Flows wait for disks, pods and other processes half of their time: three processes for two cores.
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 2)
PYTEST_WAITING := $(ENV)/bin/python -m pytest --dist loadgroup -n $(shell echo $$(($(CORES) + $(CORES) / 2)))

# The files with tests that are marked so.
TESTS_OF_NODE = tests/contracts/test_backend.py tests/flows/kube tests/cluster

# For what makes several of these at the same time.
env: $(ENV_READY)

test: $(ENV_READY)
	@echo 'kinetic: units, contracts, architecture, and a flow for each promise of the README: some 6 minutes on two cores.' >&2
	@echo 'kinetic: all other flows, and Kubernetes: make test-all' >&2
	@KINETIC_TEST_IN_MEMORY=1 $(PYTEST) -m 'not nightly and not whole' $(ARGS)

# What has just run on a real node needs no simulated one. Read when a recipe begins, so after `test-node`.
NOT_AGAIN = $(shell test -e build/ran-on-a-real-node && echo ' and not real_node')

# What `make test` leaves out. AFTER_NODE=1: the same run had `make test-node` before; see .ci/run.
test-rest: $(ENV_READY) cluster-if-it-can-be-had
	@echo 'kinetic: all flows, and jobs on a Kubernetes control plane: some 20 minutes on two cores.' >&2
	@$(PYTEST_WAITING) -m 'not nightly and whole$(if $(AFTER_NODE),$(NOT_AGAIN))' $(ARGS)

test-all: $(ENV_READY) cluster-if-it-can-be-had test-node
	@echo 'kinetic: the whole suite, except what runs in make nightly: some 25 minutes on two cores.' >&2
	@$(PYTEST_WAITING) -m 'not nightly$(NOT_AGAIN)' $(ARGS)

# One process: there is one real node on a machine. Where it cannot run or is not built, everything skips and says why.
# The cache is its own, since .ci/run has `make test` run beside it.
test-node: $(ENV_READY)
	@echo 'kinetic: calls, logs, exec, ports, evictions, memory, slices and images on a real node: some 4 minutes.' >&2
	@rm -f build/ran-on-a-real-node
	@KINETIC_TEST_REAL_NODE=1 $(ENV)/bin/python -m pytest -n 0 -o cache_dir=build/pytest-cache-of-node \
	  -m 'not nightly and real_node' $(TESTS_OF_NODE) $(ARGS)

# Which of them need PyTorch is said beside each: in tests/flows/test_examples.py, and above a block of a page.
test-torch: $(TORCH_READY)
	@$(TORCH)/bin/python -m pytest -n 0 tests/flows/test_examples.py tests/flows/test_docs_snippets.py \
	  tests/flows/test_programs_compiled_once.py tests/flows/test_objects_of_libraries.py tests/flows/test_settings_of_scripts.py \
	  tests/flows/test_preloaded_libraries.py \
	  -k 'torch or lora or wandb or peft' $(ARGS)

# Skips with the reason where there is no GPU, and its pods where there is no test cluster.
test-gpu: $(GPU_READY)
	@$(GPU)/bin/python -m pytest -n 0 tests/flows/test_jobs_on_gpus.py tests/flows/kube/test_gpus.py $(ARGS)

# Where there is no wheel of atheris for this Python, the tests that need it skip and say so. KINETIC_FUZZ_SECONDS: a reader.
nightly: $(ENV_READY)
	@$(UV) pip install --quiet --only-binary atheris --python $(ENV)/bin/python --group fuzz || true
	@$(PYTEST) -m nightly $(ARGS)

# tests/typing is the public interface as a program: both type checkers read it, once it is there.
check: $(ENV_READY)
	@$(ENV)/bin/ruff check --quiet --output-format concise
	@$(ENV)/bin/ruff format --check
	@$(ENV)/bin/mypy --strict src $(wildcard tests/typing)
	@$(ENV)/bin/mypy --config-file tests/mypy.ini tests benchmarks docs
	@test -z '$(wildcard tests/typing)' || $(ENV)/bin/pyright --pythonpath $(ENV)/bin/python tests/typing
	@$(ENV)/bin/lint-imports --no-logo
	@$(ENV)/bin/codespell
	@$(ENV)/bin/python docs/check_english.py
	@$(ENV)/bin/validate-pyproject pyproject.toml

# Needs Go; the tests of Kubernetes skip, and say so, where this has not been run. GOFLAGS=-p=1 leaves a core to others.
cluster: python-is-there
	@cd tests && $(RUN_PYTHON) -m cluster.building.build

# Three minutes after `make cluster`. Never built by a test run: `make test-node` skips where this has not been run.
node-build: python-is-there cluster
	@cd tests && $(RUN_PYTHON) -m cluster.node_building.build

# Twenty minutes of two cores. Tests that need them skip where this has not been run; no test run does it.
controllers: python-is-there cluster
	@cd tests && $(RUN_PYTHON) -m cluster.building.build controllers

node: $(ENV_READY) node-build
	@cd tests && exec ../$(ENV)/bin/python -m cluster.node_up

# The tests of Kubernetes run wherever a Go is found that can build it within a quarter of an hour, so that a first run on
# a slow machine stays below 45 minutes; without, they skip and say why. The next run goes on with what was compiled.
cluster-if-it-can-be-had: python-is-there
	@test -n "$$KINETIC_TEST_KUBECONFIG" || { cd tests && $(RUN_PYTHON) -m cluster.building.build 900 2>&1 | \
	  grep -v '^kinetic: all there' >&2; } || true

# Less than ten minutes on two quiet cores; figures also go to build/bench.json. PEERS=1 adds rows of other packages,
# CLUSTER=1 what runs on the cluster of `make cluster`, and on the node of `make node-build`.
bench: $(ENV_READY)
	@test -z "$(PEERS)" || $(UV) pip install --quiet --python $(ENV)/bin/python --group peers
	@$(ENV)/bin/python benchmarks/run_all.py $(if $(PEERS),--peers) $(if $(CLUSTER),--cluster) $(ARGS)

# This commit beside another one, measured in turns: make bench-compare BASE=main~20 ARGS="--only call,list"
bench-compare: $(ENV_READY)
	@test -n "$(BASE)" || { echo 'kinetic: name the commit to compare with: make bench-compare BASE=main~20' >&2; exit 2; }
	@$(ENV)/bin/python benchmarks/compare.py "$(BASE)" --uv "$(abspath $(UV))" $(ARGS)

# A folder for each version below build/site; SITE=FOLDER names another one, with the versions that are there.
docs: $(DOCS_READY)
	@$(DOCS)/bin/python docs/build_site.py $(SITE)

docs-serve: $(DOCS_READY)
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/python -m mkdocs serve --dev-addr 127.0.0.1:8000

clean:
	rm -rf .venv .venv-* build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
	find $(wildcard src tests benchmarks examples) -name __pycache__ -type d -prune -exec rm -rf {} +

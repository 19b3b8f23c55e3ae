# make fuzz: find a real bug in a real release. make test: everything that is checked. make help: the rest.

PYTHON ?= $(or $(shell command -v python3.11),python3)
# More words for pip: --extra-index-url of a place that has CPU builds of torch, or --no-index --find-links DIR.
PIP_FLAGS ?=
# More words for pytest: -k draft, -x.
PYTEST_FLAGS ?=
# Processes that tests run in, side by side.
JOBS ?= 2
# The releases that are used for something: repro/cases/release_list.py names them, and is asked once .venv is there.
RELEASES = $(shell $(PY) -m runners facts --releases $(1))
# What the tests drive.
TEST_TARGETS ?= $(call RELEASES,test)
# What the tests of `make test-more` drive.
MORE_TARGETS ?= $(call RELEASES,more)
# One of their tests needs this release, too.
FIX_TARGETS ?= $(call RELEASES,fix)
# What gets an environment of its own on a GPU host with a package index: 11 GB each.
CUDA_TARGETS ?= $(call RELEASES,cuda)
# make report: the ledger that this host's measurements go to, on which engine and releases, the runners that get a
# campaign and its cases per release, and ledgers of other hosts that join it.
LEDGER ?= out/report/ledger.db
ENGINE ?= emulated
REPORT_TARGETS ?= $(call RELEASES,adapted)
REPORT_RUNNERS ?= draft draft_extend decode verify
REPORT_CASES ?= 30
LEDGERS ?=

SPACE := $(subst ,, )
# With hashes, but for torch's CPU builds.
LOCK := requirements/emulated.txt
TORCH := requirements/torch.txt
# The stamp is named after their contents, so that a changed lock, and nothing else, installs again.
STAMP := .venv/.installed-$(shell cat $(LOCK) $(TORCH) | sha256sum | cut -c1-16)
PY := .venv/bin/python
# As above, for what only some tests need.
CHECKS := requirements/checks.txt
CHECKS_STAMP := .venv/.checks-$(shell sha256sum $(CHECKS) | cut -c1-16)
# As above, for what makes a release, in an environment of its own: its wheel, and its bill of materials.
MAKING := requirements/release.txt
MAKING_STAMP := .venv/.making-$(shell sha256sum $(MAKING) | cut -c1-16)
SBOM ?= out/sbom.json
SUITE := $(PY) -m pytest -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)

# What is started dozens of times is compiled once, whatever the shell says.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help setup setup-checks setup-cuda fuzz .hunt test test-more test-all test-fast test-faults test-cuda coverage lint measure report sbom clean
.DEFAULT_GOAL := help

help:
	@echo 'make fuzz        hunt for bugs in two releases of sglang for about a minute; exit code 1: found'
	@echo 'make test        lint, then all tests [TEST_TARGETS="0.5.13 ..."]'
	@echo 'make test-more   longer tests, and those of four more releases; continuous integration runs both'
	@echo 'make test-all    the tests that need any other release'
	@echo 'make test-fast   the tests that need neither sglang nor whole commands, in seconds'
	@echo 'make test-faults hostile files, devices, repositories and texts, and kills: a table by kind, in minutes'
	@echo 'make test-cuda   the tests that need a GPU, on all visible GPUs [PYTEST_FLAGS="--workers-per-gpu 4"]'
	@echo 'make coverage    branch coverage of fuzz, oracles and repro by the fast tests [COVERED="not cuda": by all]'
	@echo 'make report      stored seeds, fixes, short campaigns on all releases, then out/report/report.html'
	@echo '                 [LEDGERS="gpu-host.db"]; make measure ENGINE=cuda makes such a ledger on a GPU host'
	@echo 'make lint        format, style, types, import contract'
	@echo 'make setup       only .venv [PYTHON=python3.11] [PIP_FLAGS="--extra-index-url ..."]'
	@echo '                 (PIP_FLAGS: where pip finds no CPU build of torch by itself, name a place that has one)'
	@echo 'make setup-checks  what the tests of the HTML report in a browser need, beside Chromium itself'
	@echo 'make sbom        what eagleeye is installed with, as a bill of materials in CycloneDX [SBOM=out/sbom.json]'
	@echo 'make setup-cuda  releases of sglang with their own torch, 11 GB each [CUDA_TARGETS="0.5.13 ..."]'
	@echo 'make clean       remove what was built in this checkout; releases stay in the cache'

setup: $(STAMP) .venv/bin/eagleeye
	@:

# The console commands that pyproject.toml names.
.venv/bin/eagleeye: pyproject.toml | $(STAMP)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

$(STAMP):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo 'error: $(PYTHON) is not Python 3.11 or newer; name one: make setup PYTHON=/path/to/python3.11' >&2; exit 3; }
	@[ -x $(PY) ] || $(PYTHON) -m venv .venv || \
	  { echo 'error: $(PYTHON) makes no environments; on Debian: apt install python3.11-venv' >&2; exit 3; }
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_FLAGS) --require-hashes -r $(LOCK)
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_FLAGS) -r $(TORCH)
	@$(PY) -c 'import torch' || \
	  { echo 'error: this torch does not import: pip took a CUDA build; name a place that has CPU builds:' \
	    'make setup PIP_FLAGS="--force-reinstall --extra-index-url URL"' >&2; exit 3; }
	@rm -f .venv/.installed-*
	@touch $@

setup-checks: setup $(CHECKS_STAMP) $(MAKING_STAMP)
	@:

$(CHECKS_STAMP):
	$(PY) -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_FLAGS) --require-hashes -r $(CHECKS)
	@rm -f .venv/.checks-*
	@touch $@

$(MAKING_STAMP): | $(STAMP)
	$(PY) -m venv .venv/release
	.venv/release/bin/python -m pip install --quiet --disable-pip-version-check --no-deps $(PIP_FLAGS) --require-hashes -r $(MAKING)
	@rm -f .venv/.making-*
	@touch $@

sbom: $(MAKING_STAMP)
	@mkdir -p $(dir $(SBOM))
	cat requirements/emulated.txt requirements/torch.txt requirements/ray.txt | \
	  .venv/release/bin/cyclonedx-py requirements - --pyproject pyproject.toml --output-reproducible -o $(SBOM)

setup-cuda: setup
	$(PY) -m runners environment $(CUDA_TARGETS)

# make itself exits 2 whenever a recipe fails, but a hunt that finds something is to exit 1, like the command that it
# calls. In question mode (-q) make runs only lines marked +, and exits 1 if something else is left to do: so that is
# what a finding leaves.
ifeq ($(MAKECMDGOALS),fuzz)
MAKEFLAGS += -q
endif
# Of this very make: two that hunt side by side do not answer for each other.
FOUND := .venv/.found-$(shell echo $$PPID)

fuzz: .hunt
	$(if $(wildcard $(FOUND)),@:)

.hunt:
	+@MAKEFLAGS= $(MAKE) --no-print-directory setup PYTHON='$(PYTHON)' PIP_FLAGS='$(PIP_FLAGS)'
	+@find .venv -maxdepth 1 -name '.found-*' -mmin +600 -delete; rm -f $(FOUND); $(PY) -m runners install $$($(PY) -m runners facts --releases hunt)
	+@$(PY) -m fuzz hunt --no-known-issues; code=$$?; [ $$code -ne 1 ] || touch $(FOUND); [ $$code -le 1 ] || exit $$code

lint: setup
	$(PY) -m ruff format --check .
	$(PY) -m ruff check .
	$(PY) -m mypy
	.venv/bin/lint-imports

test: lint
	$(PY) -m runners install $(TEST_TARGETS) $(MORE_TARGETS) $(FIX_TARGETS)
	$(SUITE) -m 'not cuda and not exhaustive and not further'

# What drives a target, on these; and what repeats on all stored things what `make test` shows on some, as far as these
# releases go.
test-more: setup
	$(PY) -m runners install $(TEST_TARGETS) $(MORE_TARGETS) $(FIX_TARGETS)
	$(SUITE) -m 'not cuda' $(MORE_TARGETS:%=--target %/emulated) -k "$(subst $(SPACE), or ,$(MORE_TARGETS:%=%/emulated))"
	$(SUITE) -m 'exhaustive and not cuda and not further'

test-all: setup
	$(PY) -m runners install $(call RELEASES,adapted)
	$(SUITE) -m 'further and not cuda'

test-fast: setup
	$(SUITE) -m 'not emulated and not cuda and not slow and not exhaustive'

test-faults: setup
	$(PY) -m tests.faults -n $(JOBS) --dist loadgroup $(PYTEST_FLAGS)

# Which tests are counted: COVERED='not cuda' for all of them.
COVERED ?= not emulated and not cuda and not slow and not exhaustive

coverage: setup-checks
	$(SUITE) --cov --cov-report=term -m '$(COVERED)'

# Processes as there are GPUs, so JOBS plays no part.
test-cuda: setup
	$(PY) -m pytest -m cuda -n auto -rs $(PYTEST_FLAGS)

# A finding (1), a doubt (2) and what cannot be run here (3) are what is to be reported; being killed is not.
NOTED = { code=0; $(1) || code=$$?; [ $$code -le 3 ] || exit $$code; }

measure: setup
	@mkdir -p $(dir $(LEDGER))
	$(if $(filter emulated,$(ENGINE)),$(PY) -m runners install $(REPORT_TARGETS))
	@$(call NOTED,$(PY) -m repro run --quiet --tries 3 --ledger $(LEDGER) \
	  $(REPORT_TARGETS:%=--target %/$(ENGINE)) repro/seeds/*.json)
	@$(call NOTED,$(PY) -m repro fixes --engine $(ENGINE) --ledger $(LEDGER))
	@for runner in $(REPORT_RUNNERS); do \
	  $(call NOTED,$(PY) -m fuzz run --runner $$runner --cases $(REPORT_CASES) --ledger $(LEDGER) \
	    $(REPORT_TARGETS:%=--target %/$(ENGINE))); done

report: measure
	$(if $(LEDGERS),$(PY) -m repro ledger merge $(LEDGER) $(LEDGERS))
	$(PY) -m reports html --ledger $(LEDGER) --out $(dir $(LEDGER))report.html

clean:
	rm -rf .venv out .coverage .coverage.* .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -prune -exec rm -rf {} +

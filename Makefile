# Every target creates and reuses .venv in this folder.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
DEMO_OUT ?= demo
# a process more than the cores of a small machine: tests wait for others about a fifth of the time
TEST_PROCESSES ?= 3
# Modules are compiled when they are first imported: two thirds of what is installed never are, and pip takes over a minute.
INSTALL := $(BIN)/pip install -q --no-compile
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup browser demo test test-packages slow docs docs-site tutorials release release-check integrations faults audit nightly paper lint format bench simulate clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

PACKAGES := $(wildcard packages/layerscope-*)

$(STAMP): pyproject.toml constraints.txt $(PACKAGES:%=%/pyproject.toml)
	$(PYTHON) -m venv $(VENV)
	@# mteb's pytrec_eval has no wheel for some machines (Linux on ARM), and its source build needs GitHub
	$(INSTALL) -c constraints.txt --only-binary :all: pytrec-eval-terrier 2>/dev/null || $(INSTALL) ./packages/pytrec-eval-pure
	$(INSTALL) -c constraints.txt -e '.[dev]'
	@# the packages beside layerscope
	$(INSTALL) --no-deps $(PACKAGES:%=-e ./%)
	@touch $@

setup: $(STAMP) ## create .venv and install layerscope with what the demo and the tests need

browser: ## Debian's chromium for the report's tests, where it can be had
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || test -n "$$LAYERSCOPE_CHROMIUM" \
	|| { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && { timeout 120 apt-get update -qq; DEBIAN_FRONTEND=noninteractive timeout 400 apt-get install -y -qq --no-install-recommends chromium; } </dev/null >/dev/null 2>&1; } \
	|| echo "no chromium here, and it could not be installed: the report's browser tests are skipped"

demo: $(STAMP) ## make a real encoder faster and read a language model better, check both with hidden labels, write a report to open
	$(BIN)/python examples/demo.py --out $(DEMO_OUT)

# Types are checked while the tests run, which often wait for other processes.
test: $(STAMP) browser ## lint, type-check and run the core's tests, and of every package those that show that the core serves it
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	@$(BIN)/mypy src >$(VENV)/mypy.log 2>&1 & types=$$!; \
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadgroup -m "not slow and (contract or not package)"; tests=$$?; \
	wait $$types; typed=$$?; cat $(VENV)/mypy.log; exit $$((tests ? tests : typed))

test-packages: $(STAMP) ## type-check everything, and run all tests of the packages, the benchmarks and the examples, but the slow ones
	$(BIN)/mypy
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadfile -m "package and not slow"

slow: $(STAMP) browser ## the tests that take longest: clusters, the report in a browser, faults, whole tasks on real models, every example of the documentation
	$(BIN)/pytest -n $(TEST_PROCESSES) --dist loadgroup -m slow

# The site has an environment of its own: its tools are no business of layerscope's users.
DOCS_VENV := .venv-docs
DOCS_STAMP := $(DOCS_VENV)/.installed

$(DOCS_STAMP): docs/site/constraints.txt
	$(PYTHON) -m venv $(DOCS_VENV)
	$(DOCS_VENV)/bin/pip install -q -c docs/site/constraints.txt mkdocs-material 'mkdocstrings[python]' ruff
	@touch $@

docs: $(STAMP) docs-site ## check every code block and tutorial, and build the documentation into build/site
	$(BIN)/pytest tests/docs

docs-site: $(STAMP) $(DOCS_STAMP) ## build the documentation alone; it needs no network
	$(BIN)/python docs/site/cli_reference.py build/docs/cli.md
	$(BIN)/python docs/site/pictures.py build/docs/images
	NO_MKDOCS_2_WARNING=1 $(DOCS_VENV)/bin/mkdocs build --strict --quiet
	@echo "build/site/index.html; with search: $(BIN)/python -m http.server --directory build/site 8000, then http://localhost:8000"

tutorials: $(STAMP) ## run the tutorials with the real models and write their notebooks: some minutes
	$(BIN)/python docs/site/tutorials.py

release: ## give the changelog's unreleased section a version and a date: make release VERSION=0.2.0
	$(PYTHON) tests/packaging/release.py $(VERSION)

release-check: $(STAMP) ## build both packages, install them in empty environments, run the quickstart, try each extra
	$(BIN)/python tests/packaging/release_check.py

INTEGRATIONS ?= .venv-integrations
ONLY ?=
LLAMA ?=
integrations: $(STAMP) ## exported folders in the programs that people use them with, each in its own environment (ONLY=onnxruntime,model2vec)
	$(BIN)/python tests/integrations/run.py --work $(INTEGRATIONS) --only '$(ONLY)' $(if $(LLAMA),--llama-libraries $(LLAMA))

FAULTS ?= 1
SEED ?= 0
faults: $(STAMP) ## 10,000 mutated inputs, 100 kills of each command, 800 damaged files (FAULTS=0.1: a tenth of them)
	$(BIN)/python -m tests.faults --share $(FAULTS) --seed $(SEED) --processes $(TEST_PROCESSES)

AUDIT := .venv-audit
audit: $(STAMP) ## known vulnerabilities of the pinned packages; needs the advisories of pypi.org, and says where it has none
	@test -x $(AUDIT)/bin/pip-audit || { $(PYTHON) -m venv $(AUDIT) && $(AUDIT)/bin/pip install -q pip-audit; }
	$(BIN)/python tests/packaging/audit.py $(AUDIT)/bin/pip-audit

nightly: test test-packages slow faults audit integrations bench simulate paper ## everything that takes long: tests, all faults with the day as seed, vulnerabilities, other programs, benchmarks, the paper on small models
nightly: SEED = $(shell date +%Y%m%d)

PAPER_OUT ?= runs/paper-small
paper: $(STAMP) ## every experiment of the paper on the catalogue's small models
	$(BIN)/layerscope-paper sweep paper-small --out $(PAPER_OUT)

lint: $(STAMP) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(STAMP) ## let ruff rewrite the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

bench: $(STAMP) ## short CPU benchmarks of a profile: its time over the bare passes, its memory over the number of prompts
	$(BIN)/python benchmarks/profile_overhead.py --prompts 16
	$(BIN)/python benchmarks/memory.py --prompts 1000 8000

simulate: $(STAMP) ## the statistics on data whose truth is known: bias, coverage, false positives, power
	for part in picking intervals; do $(BIN)/python benchmarks/simulate.py $$part || exit 1; done

clean: ## remove .venv and what the demo wrote
	rm -rf $(VENV) $(DOCS_VENV) $(AUDIT) $(INTEGRATIONS) $(DEMO_OUT) build

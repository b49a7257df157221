# `make help` lists the targets. ARGS is handed on: make test ARGS="tests/unit -k window"

.DEFAULT_GOAL := help
.PHONY: help setup setup-demo test test-fast chaos chaos-processes chaos-realtime test-hosts test-yarn test-azure evolution lint format types layers longest demo leaderboard demo-realtime demo-scoring nab bench bench-guards bench-windows bench-latency nexmark evaluation docs package spark-versions lock clean

VENV := .venv
BIN := $(VENV)/bin
ARGS ?=
WORKERS ?= 2
N ?= 10000
FIRST ?=
MINUTES ?=
NAB ?=
PLANES ?= epochs changes remaps remaps-and-changes realtime realtime-remaps

help: ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1@\2/p' $(MAKEFILE_LIST) | awk -F@ '{printf "  make %-15s %s\n", substr($$1, 3), $$2}'

setup: ## make .venv with the locked dependencies and millrace (does nothing if up to date)
	@sh scripts/setup.sh

setup-demo: ## make .venv with what the examples need, and no more
	@sh scripts/setup.sh demo

# Tests start hundreds of Python processes; without bytecode each compiles all that it imports.
test test-fast chaos chaos-processes chaos-realtime test-hosts test-yarn test-azure evolution: export PYTHONDONTWRITEBYTECODE :=

test: setup ## run every tier of tests, in WORKERS processes; what they took is in build/durations.txt
	$(BIN)/pytest -n $(WORKERS) --durations-file=build/durations.txt $(ARGS)

test-fast: setup ## what to run before a commit: in less than three minutes, and without a JVM
	$(BIN)/pytest -n $(WORKERS) --fast --durations-file=build/durations-fast.txt $(ARGS)

chaos: setup ## N schedules of simulated faults on each of PLANES, for MINUTES at most, from a new seed on, which is printed, or from FIRST
	for plane in $(PLANES); do $(BIN)/python -m simulation --plane $$plane --schedules $(N) $(if $(FIRST),--first $(FIRST)) $(if $(MINUTES),--minutes $(MINUTES)) || exit; done

chaos-processes: setup ## kill real drivers, executors and workers for MINUTES, by default 10
	CHAOS_MINUTES=$(or $(MINUTES),10) $(BIN)/pytest -s tests/spark/processes tests/spark/test_zeitgeist.py $(ARGS)

chaos-realtime: setup ## kill what runs mixes in real time KILLS times, by default 100, and pause it PAUSES times, or for MINUTES, FAULTS a round; STANDBY is the share of rounds with one; every SCALES seconds other tasks take over, and every UPDATES a changed pipeline; LEASES is the share of rounds with a driver that waits; SEED draws
	CHAOS_SEED=$(or $(SEED),$(strip $(shell od -An -N3 -tu4 /dev/urandom))) CHAOS_KILLS=$(or $(KILLS),100) CHAOS_PAUSES=$(or $(PAUSES),20) CHAOS_FAULTS=$(or $(FAULTS),20) CHAOS_LONGEST=$(or $(LONGEST),30) $(if $(MINUTES),CHAOS_MINUTES=$(MINUTES)) $(if $(REMAPS),CHAOS_REMAPS=$(REMAPS)) $(if $(STANDBY),CHAOS_STANDBY=$(STANDBY)) CHAOS_SCALES=$(or $(SCALES),20) CHAOS_UPDATES=$(or $(UPDATES),30) CHAOS_LEASES=$(or $(LEASES),0.3) $(BIN)/pytest -s tests/spark/processes/test_live_chaos.py $(ARGS)

test-hosts: setup ## four hosts, as network namespaces: killed KILLS times, by default 3, switched off, cut off, set wrong; takes root
	HOSTS_KILLS=$(or $(KILLS),3) $(BIN)/pytest -s tests/spark/processes/cluster/test_hosts.py $(ARGS)

test-yarn: setup ## spark-submit to a YARN of its own, in client and cluster mode, with killed containers; 56 MB are fetched
	$(BIN)/python scripts/jars.py .yarn
	$(BIN)/pytest -s tests/spark/processes/cluster/test_yarn.py $(ARGS)

test-azure: setup ## a checkpoint in Azure Blob Storage: Azurite, which npm fetches
	$(BIN)/pytest tests/faults/azure $(ARGS)

evolution: setup ## the flights of a year through five versions of a program on Spark, killed KILLS times, by default 6
	EVOLUTION_KILLS=$(or $(KILLS),6) $(BIN)/pytest -s tests/spark/processes/test_evolution.py $(ARGS)

lint: setup ## ruff: rules, and whether the code is formatted
	$(BIN)/ruff check . $(ARGS)
	$(BIN)/ruff format --check .

format: setup ## ruff: format, and fix what can be fixed by itself
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

types: setup ## mypy, strict, over src/millrace
	$(BIN)/mypy $(ARGS)

layers: setup ## import-linter: imports go one way
	$(BIN)/lint-imports --no-cache $(ARGS)

longest: setup ## the ten longest modules and functions of the package
	$(BIN)/python scripts/longest.py

demo: setup-demo ## the zeitgeist example on a local Spark, results in demo-out/
	$(BIN)/millrace demo zeitgeist $(ARGS)

leaderboard: setup-demo ## the tutorial's game on a local Spark, results in demo-out/
	$(BIN)/millrace demo leaderboard $(ARGS)

demo-realtime: setup-demo ## the game live through Kafka, with latency; ARGS="--seconds 60 --rate 200"
	$(BIN)/millrace demo realtime $(ARGS)

demo-scoring: setup-demo ## payments scored by a model behind HTTP, killed in the middle, totals checked; ARGS="--seconds 60 --rate 200"
	$(BIN)/python -m millrace_examples.scoring.demo $(ARGS)

nab: setup-demo ## anomalies in the 58 streams of NAB on a local Spark, with NAB's score; NAB=folder of a clone
	@test -n "$(NAB)$(findstring --nab,$(ARGS))" -o -d demo-out/NAB || \
	  git clone --depth 1 https://github.com/numenta/NAB demo-out/NAB || \
	  { echo "nab: without GitHub, bring a clone of numenta/NAB here: make nab NAB=folder" >&2; exit 1; }
	$(BIN)/python -m millrace_examples.nab --nab $(or $(NAB),demo-out/NAB) $(ARGS)

bench: ## benchmarks of keyed state, in an environment of their own (.venv-bench)
	@sh scripts/setup.sh bench
	.venv-bench/bin/python -m benchmarks.keyed_state $(ARGS)

bench-windows: ## benchmarks of windows, with Flink in an environment of its own (.venv-flink)
	@sh scripts/setup.sh bench
	@sh scripts/setup.sh flink
	.venv-bench/bin/python -m benchmarks.windows $(ARGS)

bench-guards: ## this tree and BASE, by default the commit before, by turns: which guarded figure is worse; ARGS="--only kernel,appends --rounds 3"
	@sh scripts/setup.sh bench
	.venv-bench/bin/python -m benchmarks.guards --base $(or $(BASE),HEAD~1) $(ARGS)

nexmark: ## Nexmark's queries beside Flink and Spark, checked by DuckDB; ARGS="--queries q5,q9 --events 200000"
	@sh scripts/setup.sh bench
	@sh scripts/setup.sh flink
	.venv-bench/bin/python -m benchmarks.nexmark $(ARGS)

bench-latency: ## latency in real time from Kafka, two minutes: met or not met
	@sh scripts/setup.sh bench
	.venv-bench/bin/python -m benchmarks.latency --to code --rivals millrace-realtime --rates 200,2000 --partitions 1 --every 5 --seconds 25 --warm-up 25 $(ARGS)

evaluation: ## MillWheel's evaluation measured again, into docs/benchmarks.md; ARGS=--quick for a look
	@sh scripts/setup.sh bench
	.venv-bench/bin/python -m benchmarks.evaluation $(ARGS)

docs: setup ## the documentation site in build/site; any warning fails; ARGS=serve shows it while it is written
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs $(or $(ARGS),build)

package: ## an sdist and a wheel in dist/, installed in a clean environment to run the quick start
	@sh scripts/package.sh

spark-versions: setup ## smoke tests on each supported Spark, in environments of their own, into docs/reference/sparks.md; ARGS="4.0 4.1"
	$(BIN)/python scripts/spark_versions.py $(ARGS)

lock: ## write requirements/*.lock again, with the newest versions that fit
	@sh scripts/lock.sh

clean: ## remove environments, caches, build artefacts and demo results
	rm -rf .azurite .flink .kafka .s3 .spark-kafka .yarn
	rm -rf .venv-spark-*
	rm -rf .venv .venv.lock .venv-bench .venv-bench.lock .venv-flink .venv-flink.lock .venv-lock
	rm -rf build dist *.egg-info src/*.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	rm -rf demo-out spark-warehouse metastore_db derby.log
	find src tests examples benchmarks simulation -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

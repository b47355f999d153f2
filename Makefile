# Every target does its own set-up. Knobs: PYTHON (to make .venv with), ARGS (for demo, quick, check, test, extended, coverage, spark-versions, mutants, sim, soak and bench), SEEDS and FIRST (for sim), MINUTES (for soak), WORKERS (for test, extended, spark-versions, mutants and sim).

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help setup demo quick check test extended light heavy coverage spark-versions long mutants sim soak model lint linters classes docs bench bench-peers dist clean

# The first interpreter that runs (a pyenv shim may not), is new enough, and can make an environment.
PYTHON ?= $(shell for python in python3.12 python3.11 python3.10 python3; do \
	$$python -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 10))' \
	>/dev/null 2>&1 && echo $$python && break; done)
ARGS ?=
SEEDS ?= 300
FIRST ?= 0
MINUTES ?= 10
# Processes that run tests: each may start a JVM and an S3 server.
WORKERS ?= 2
PYTEST = $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile
# Files go to the processes by how many tests they have. Of those that need a server or a JVM, the
# longest have few: without that order they are not the last, for which one process would wait.
IN_ORDER = --no-loadscope-reorder
# One process more: those that kill processes, or need a server or a JVM, wait as long as they compute.
HEAVY = $(BIN)/pytest --numprocesses $(shell expr $(WORKERS) + 1) --dist loadfile $(IN_ORDER)
# What needs neither a JVM nor a server.
LIGHT := not (spark or s3 or slow)

# What each run of pytest tells of its tests, for the last lines of `make test`.
REPORTS := build/reports

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# What the demo needs is half of what the tests need.
FOR_DEMO := $(VENV)/.installed-demo
INSTALL := $(BIN)/python -m pip install --quiet --constraint constraints.txt
JAR := $(VENV)/.jar
# For a JVM that ends within a minute or two, what the optimizing compiler costs is never earned.
SHORT_LIVED := -XX:TieredStopAtLevel=1 -XX:+UseSerialGC
# A broker of Kafka, Spark's connector, Hadoop's client for S3; the tests that need them are skipped without.
OPTIONAL := $(VENV)/hadoop/s3a/complete
DELTA := io.delta:delta-spark_4.2_2.13:4.4.0

# Spark is the one in .venv, and its Python workers run what the driver runs, activated or not.
unexport SPARK_HOME
# Each process that a test starts would compile the package again.
unexport PYTHONDONTWRITEBYTECODE
export PYSPARK_PYTHON := $(CURDIR)/$(BIN)/python
export PYSPARK_DRIVER_PYTHON := $(PYSPARK_PYTHON)

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) $(JAR) $(OPTIONAL) ## make .venv with everything pinned, one with an older Spark, and fetch jars: of Delta, Kafka, and Hadoop's client for S3
	@$(BIN)/python -m tests.harness.spark_environments older

demo: $(FOR_DEMO) $(JAR) ## run the demo, examples/demo.py (ARGS="--help" for its options)
	$(BIN)/spark-submit --packages $(DELTA) --conf spark.log.level=ERROR \
		--driver-java-options '$(SHORT_LIVED)' examples/demo.py $(ARGS)

quick: $(INSTALLED) ## at each save: the tests of pure code and the memory store, about a minute
	$(PYTEST) -m quick tests/unit tests/docs --ignore tests/unit/bench --ignore tests/unit/serve $(ARGS)

check: lint ## lint, then the short tests that need neither a JVM nor a server: about four minutes
	$(PYTEST) -m '$(LIGHT) and not (medium or extended)' $(ARGS)

test: setup ## lint, then the tests (ARGS="-k name" to choose) but for the extended ones: about a quarter of an hour
	@$(MAKE) --no-print-directory --jobs 2 linters classes
	@rm -rf $(REPORTS) && mkdir -p $(REPORTS)
	@$(MAKE) --no-print-directory light
	@$(MAKE) --no-print-directory heavy
	@$(BIN)/python -m tests.harness.skipped_tests $(REPORTS)/light.xml $(REPORTS)/heavy.xml

extended: setup classes ## the tests that need an S3 server, a browser, another engine, a JVM, cluster or fleet of their own, or real time: about twenty minutes
	@mkdir -p $(REPORTS)
	$(HEAVY) -m extended --junitxml $(REPORTS)/extended.xml $(ARGS)
	@$(BIN)/python -m tests.harness.skipped_tests $(REPORTS)/extended.xml

light:
	$(PYTEST) -m '$(LIGHT) and not extended' --junitxml $(REPORTS)/light.xml $(ARGS)

heavy:
	$(HEAVY) -m 'not ($(LIGHT) or extended)' --junitxml $(REPORTS)/heavy.xml $(ARGS)

# It doubles the cost of a test, so each line is measured in tests that cover it quickly (tests/conftest.py).
coverage: $(INSTALLED) ## measure which lines of the package the tests go through; fails below the floor: about five minutes
	$(PYTEST) -m '$(LIGHT) and not no_cover' --cov --cov-report= $(ARGS)

spark-versions: setup ## the contract of the tests on Spark 3.5, 4.0, 4.1, 4.2 and 4.3, and on the lowest versions of libraries; keeps records (ARGS="4.1" to choose): about half an hour
	$(BIN)/python -m tests.versions --workers $(WORKERS) $(ARGS)

long: setup classes ## the tests that have a long form, at full size: about an hour
	PRAVEGA_SPARK_TESTS=long $(PYTEST) -m long $(IN_ORDER) $(ARGS)

mutants: $(INSTALLED) ## place small faults in copies, one at a time, which the tests of their promises catch (ARGS="--help"): about seven minutes
	$(BIN)/python -m tests.mutants --workers $(WORKERS) $(ARGS)

model: $(INSTALLED) ## walk through every order of steps of a commit in a model, and of eight that lack a rule; needs spin and gcc: two minutes of one processor
	$(BIN)/python docs/model/check.py

sim: $(INSTALLED) ## play the package in a simulator (SEEDS=300, FIRST=0); prints what fails, how to play it again, and what was covered: about three and a half minutes for 300
	$(BIN)/python -m tests.sim --seeds $(SEEDS) --first $(FIRST) --workers $(WORKERS) --save build/sim $(ARGS)

soak: $(INSTALLED) $(JAR) ## real processes and Spark that are killed, on a disk (ARGS="--storage s3" for a server behind failing proxies), for MINUTES=10; checks their histories, and that nothing grows
	$(BIN)/python -m tests.soak --minutes $(MINUTES) $(ARGS)

# The classes of Spark, which the JVMs of the tests map into memory, unless this Java finds them recorded.
classes: $(JAR)
	@$(BIN)/python -m tests.harness.jvm

lint: setup ## ruff, mypy, and the layers
	@$(MAKE) --no-print-directory linters

linters:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(INSTALLED) ## build the site of docs/ into build/site, with warnings as errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo 'open build/site/index.html; its search needs a server: python3 -m http.server --directory build/site'

bench: setup ## run the benchmarks (ARGS="--help" for their options)
	$(BIN)/python -m bench $(ARGS)

bench-peers: setup ## measure this project beside Kafka, Pravega, Delta, Paimon, DuckLake and Parquet (ARGS="--size small" to try it, --keep for docs/benchmarks.md): about an hour
	$(BIN)/python -m bench.peers.environments
	$(BIN)/python -m bench.peers $(ARGS)

dist: setup ## build the wheel and the sdist in dist/, check them, and try both alone on each Python
	rm -rf dist
	$(BIN)/python -m hatchling build -d dist
	$(BIN)/python -m twine check --strict dist/*
	.ci/try-dist dist

clean: ## remove .venv and all that the other targets leave
	rm -rf $(VENV) .peers build dist out bench/out artifacts metastore_db spark-warehouse derby.log
	rm -rf .grimp_cache .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Java is looked for first: what follows takes minutes.
$(FOR_DEMO): pyproject.toml constraints.txt
	@java="$${JAVA_HOME:+$$JAVA_HOME/bin/}java"; \
	major=$$("$$java" -XshowSettings:properties -version 2>&1 | sed -n 's/.*java.specification.version = //p') || true; \
	[ "$${major%%.*}" -ge 17 ] 2>/dev/null || { echo "Spark 4 needs Java 17 or newer; found $${major:-none} ($$java). Install a JDK, or set JAVA_HOME." >&2; exit 1; }
	@if ! $(BIN)/python -c '' 2>/dev/null; then \
		python='$(PYTHON)'; \
		[ -n "$$python" ] || { echo 'No Python 3.10 to 3.13 found (with venv): install one, or name it: make PYTHON=...' >&2; exit 1; }; \
		echo "$$python -m venv $(VENV)"; "$$python" -m venv --clear $(VENV); \
	fi
	@echo 'installing what the demo needs: about 900 MB, once'
	$(INSTALL) pip
	$(INSTALL) --build-constraint constraints.txt --editable '.[demo]'
	@touch $@

$(INSTALLED): $(FOR_DEMO)
	@echo 'installing what the tests need: about 900 MB more, once'
	$(INSTALL) --build-constraint constraints.txt --editable '.[all]'
	@touch $@

# One session fetches the jar into the cache that all later ones use, so that no test waits for it.
$(JAR): $(FOR_DEMO)
	@echo 'fetching $(DELTA): 175 MB, once'
	@$(BIN)/python -c 'from pyspark.sql import SparkSession; SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").config("spark.jars.packages", "$(DELTA)").getOrCreate().stop()' \
	>$(VENV)/jar.log 2>&1 || { cat $(VENV)/jar.log >&2; exit 1; }
	@touch $@

# A failure is no error: nothing else needs these jars, and the next make tries again.
$(OPTIONAL): $(INSTALLED)
	@echo 'fetching a Kafka broker, Spark'"'"'s connector and Hadoop'"'"'s client for S3: 130 MB, once'
	@$(BIN)/python -m tests.harness.spark_jars >$(VENV)/jars.log 2>&1 || \
	{ tail -n 3 $(VENV)/jars.log >&2; echo 'Kafka or the client is missing: their tests will be skipped' >&2; }

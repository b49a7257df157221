#!/bin/sh
# Writes requirements/*.lock again from pyproject.toml: the newest versions that fit, with hashes,
# for every platform and every Python from 3.11 on. Nothing of the machine's own package index
# setup is written into them.
#
# Spark is pinned here, not in pyproject.toml: users may have any Spark that millrace supports, the
# tests run on one.

set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-python3}
venv=.venv-lock
[ -x $venv/bin/uv ] || {
    rm -rf $venv
    "$python" -m venv $venv
    $venv/bin/python -m pip install --disable-pip-version-check --quiet 'uv>=0.7'
}

compile() { # lock file, inputs and extras...
    lock=$1
    shift
    echo "lock: $lock"
    $venv/bin/uv pip compile --quiet --upgrade --universal --python-version 3.11 \
        --generate-hashes --no-annotate --no-emit-index-url --no-emit-find-links \
        --custom-compile-command "make lock" --output-file "$lock" "$@" </dev/null
}

compile requirements/build.lock requirements/build.in
compile requirements/dev.lock --extra demo --extra dev --extra site \
    --constraint requirements/spark.txt pyproject.toml
# Of the versions that the tests run with: `make test` after `make demo` only adds to .venv.
compile requirements/demo.lock --extra demo \
    --constraint requirements/dev.lock pyproject.toml
compile requirements/bench.lock --extra bench \
    --constraint requirements/spark.txt pyproject.toml
for spark in requirements/spark-*.txt; do
    [ "$spark" = requirements/spark-kafka.txt ] ||
        compile "${spark%.txt}.lock" --constraint "$spark" \
            requirements/spark-versions.in pyproject.toml
done
compile requirements/flink.lock requirements/flink.in

#!/bin/sh
# Builds an sdist, and of that a wheel, in dist/; installs the wheel with what it needs, and nothing
# else, in a new environment; and runs the quick start of the README there, on Spark too. Then it
# makes a project with `millrace new`, and takes it to its end: its environment, its test, its run.
#
# The builders are those of requirements/build.lock. PYTHON names the interpreter to use.

set -eu
cd "$(dirname "$0")/.."
unset PYTHONHOME PYTHONPATH PYSPARK_PYTHON
PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_DISABLE_PIP_VERSION_CHECK

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
rm -rf dist
mkdir dist

"${PYTHON:-python3}" -m venv "$work/builder"
"$work/builder/bin/pip" install --quiet --require-hashes -r requirements/build.lock
"$work/builder/bin/python" -c "from setuptools.build_meta import build_sdist as build; build('dist')" >"$work/log"
tar xzf dist/*.tar.gz -C "$work"
(cd "$work"/millrace_spark-* && ../builder/bin/python -c "from setuptools.build_meta import build_wheel as build; build('..')") >"$work/log"
mv "$work"/*.whl dist/

"${PYTHON:-python3}" -m venv "$work/clean"
"$work/clean/bin/pip" install --quiet dist/*.whl
"$work/clean/bin/pip" check
cp README.md scripts/quick_start.py "$work/"
(cd "$work" && clean/bin/python quick_start.py README.md)
"$work/clean/bin/millrace" --help >"$work/log"
"$work/clean/bin/python" -m millrace --version
(
    cd "$work" && clean/bin/millrace new tea-house && cd tea-house
    make setup test run ARGS=--drain
    .venv/bin/python - <<'END'
import pyarrow.dataset

columns = ["_key", "value"]
rows = pyarrow.dataset.dataset("out").to_table().select(columns).to_pylist()
counts = sorted(tuple(row.values()) for row in rows)
assert counts == [("mate", 1), ("tea", 1), ("tea", 1)], counts
print(f"the project of `millrace new` has counted {counts}")
END
)
ls dist

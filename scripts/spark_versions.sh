#!/bin/sh
# Installs Millrace from this folder beside an older Spark, in a new environment, and runs the quick
# start of the README there, by epochs; real time is to be refused.
#
#   sh scripts/spark_versions.sh 4.2.1 4.2.0     by default 4.2.1
#
# It downloads half a gigabyte a version. PYTHON names the interpreter to use.

set -eu
cd "$(dirname "$0")/.."
unset PYTHONHOME PYTHONPATH PYSPARK_PYTHON
PIP_DISABLE_PIP_VERSION_CHECK=1
export PIP_DISABLE_PIP_VERSION_CHECK

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp README.md scripts/quick_start.py scripts/no_real_time.py "$work/"
mkdir "$work/millrace"
cp -r LICENSE README.md examples pyproject.toml setup.py src "$work/millrace/"

for version in "${@:-4.2.1}"; do
    "${PYTHON:-python3}" -m venv "$work/$version"
    "$work/$version/bin/pip" install --quiet --no-compile "pyspark==$version" "$work/millrace"
    "$work/$version/bin/pip" check
    (cd "$work" && "$version/bin/python" quick_start.py README.md)
    (cd "$work" && "$version/bin/python" no_real_time.py "$version")
done

#!/bin/sh
# Makes the virtual environments that the make targets use.
#
#   sh scripts/setup.sh demo     .venv        from requirements/demo.lock: what the examples need
#   sh scripts/setup.sh          .venv        from requirements/dev.lock, which has all of that, too;
#                                             and the jars of the servers that tests start, and
#                                             what lets their JVMs start sooner
#   sh scripts/setup.sh bench    .venv-bench  from requirements/bench.lock
#   sh scripts/setup.sh flink    .venv-flink  from requirements/flink.lock, for benchmarks.windows
#   sh scripts/setup.sh spark-4.0   .venv-spark-4.0 from requirements/spark-4.0.lock, and the same
#                                             of others, for make spark-versions
#
# It needs Python 3.11 or newer with its venv module, a Java runtime 17 or newer (Spark runs on it),
# and for the tests a PostgreSQL server (it is not started, tests start their own), PgBouncer,
# Chromium and its chromedriver. As root on Debian or Ubuntu it installs what is missing; otherwise it ends with one
# line that says what to install.
# PYTHON names the interpreter to use, JAVA_HOME the Java runtime.
#
# It does nothing when nothing changed. A venv counts only once its stamp is written, so one left
# half made by an interrupted run is thrown away and made again.

set -eu
cd "$(dirname "$0")/.."

# The locale of the caller must not decide how files are read; C always exists.
LC_ALL=C
PYTHONUTF8=1
PIP_DISABLE_PIP_VERSION_CHECK=1
PIP_NO_INPUT=1
PIP_USER=0
export LC_ALL PYTHONUTF8 PIP_DISABLE_PIP_VERSION_CHECK PIP_NO_INPUT PIP_USER
unset PYTHONHOME PYTHONPATH

python_min=3.11
java_min=17

purpose=${1:-dev}
case $purpose in
demo | dev) venv=.venv ;;
bench | flink | spark-*) venv=.venv-$purpose ;;
*)
    echo "usage: sh scripts/setup.sh [demo|dev|bench|flink|spark-4.0]" >&2
    exit 2
    ;;
esac
lock=requirements/$purpose.lock
[ -f "$lock" ] || {
    echo "setup: no $lock" >&2
    exit 2
}

say() { echo "setup: $*"; }
fail() {
    echo "setup: $*" >&2
    exit 1
}

# --- what the machine has ------------------------------------------------------------------------

python_ok() { # interpreter
    "$1" -c "import sys; sys.exit(sys.version_info < tuple(map(int, '$python_min'.split('.'))))" \
        >/dev/null 2>&1
}

real_python() { # interpreter -> the file behind it
    # Behind an activated venv too: it may be the very one that is about to be thrown away.
    "$1" -c 'import os, sys; print(os.path.realpath(sys.executable))'
}

find_python() { # sets $python, empty when there is none
    python=
    if [ -n "${PYTHON:-}" ]; then
        python_ok "$PYTHON" || fail "PYTHON=$PYTHON is not a Python $python_min or newer:" \
            "set it to one that is, or unset it."
        python=$(real_python "$PYTHON")
        return
    fi
    for candidate in python3 python3.13 python3.12 python3.11 python; do
        if python_ok "$candidate"; then
            python=$(real_python "$candidate")
            return
        fi
    done
}

venv_ok() { "$python" -c 'import ensurepip, venv' >/dev/null 2>&1; }

java_ok() { # java program
    # The first line may be the JVM's "Picked up JAVA_TOOL_OPTIONS"; 1.8.0 is Java 8.
    major=$("$1" -version 2>&1 | sed -n 's/^[^"]* version "\([0-9][0-9]*\).*/\1/p' | head -n 1)
    [ "${major:-0}" -ge "$java_min" ]
}

find_java() {
    if [ -n "${JAVA_HOME:-}" ]; then
        java_ok "$JAVA_HOME/bin/java" || fail "JAVA_HOME=$JAVA_HOME has no Java $java_min or" \
            "newer: set it to one that has, or unset it to use the java on PATH."
        return 0
    fi
    java_ok java
}

postgres_ok() {
    command -v initdb >/dev/null 2>&1 && return 0
    for program in /usr/lib/postgresql/*/bin/initdb; do
        [ -x "$program" ] && return 0
    done
    return 1
}

pgbouncer_ok() { command -v pgbouncer >/dev/null 2>&1 || [ -x /usr/sbin/pgbouncer ]; }

chromium_ok() { [ -x /usr/bin/chromium ] && [ -x /usr/bin/chromedriver ]; }

look() { # sets $missing (words for people) and $packages (names for apt-get)
    missing= packages=
    find_python
    if [ -z "$python" ]; then
        missing="Python $python_min or newer, with its venv module"
        packages="python3 python3-venv"
    elif ! venv_ok; then
        missing="the venv module of $python"
        packages=$("$python" -c 'import sys; print("python%d.%d-venv" % sys.version_info[:2])')
    fi
    if ! find_java; then
        missing="${missing:+$missing and }a Java runtime $java_min or newer"
        packages="${packages:+$packages }openjdk-$java_min-jre-headless"
    fi
    if [ "$purpose" = dev ] && ! postgres_ok; then
        missing="${missing:+$missing and }a PostgreSQL server (initdb, pg_ctl)"
        packages="${packages:+$packages }postgresql"
    fi
    if [ "$purpose" = dev ] && ! pgbouncer_ok; then
        missing="${missing:+$missing and }PgBouncer"
        packages="${packages:+$packages }pgbouncer"
    fi
    if [ "$purpose" = dev ] && ! chromium_ok; then
        missing="${missing:+$missing and }Chromium and its chromedriver in /usr/bin"
        packages="${packages:+$packages }chromium chromium-driver"
    fi
}

# --- what can be installed -----------------------------------------------------------------------

apt() { DEBIAN_FRONTEND=noninteractive apt-get -qq -y -o Dpkg::Use-Pty=0 "$@" </dev/null; }

install_packages() {
    say "missing $missing; installing $packages"
    apt update || say "apt-get update failed; trying with the package lists there are"
    for package in $packages; do
        apt install --no-install-recommends "$package" && continue
        case $package in # other releases have other names for it
        openjdk-*) other=default-jre-headless ;;
        python3.*) other=python3-venv ;;
        *) continue ;;
        esac
        apt install --no-install-recommends "$other" || true
    done
}

look
if [ -n "$missing" ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    install_packages
    look
fi
if [ -n "$missing" ]; then
    fail "missing $missing. Install it (on Debian or Ubuntu: apt-get install $packages)" \
        "or name one with PYTHON or JAVA_HOME, then run this again."
fi

# --- the venv ------------------------------------------------------------------------------------

# Two makes at once would build on top of each other.
if command -v flock >/dev/null 2>&1; then
    exec 9>"$venv.lock"
    flock 9
fi

# What the installed dependencies follow from, and what the project's own installation follows from.
# The folder is in it because a venv does not survive being moved.
follows_from() { # purpose
    pwd -P
    "$python" -c 'import sys; print(sys.version)'
    cksum requirements/build.lock "requirements/$1.lock"
}
want_project=$(cksum pyproject.toml setup.py)

stamped() { # file, text
    [ -f "$1" ] && [ "$(cat "$1")" = "$2" ]
}
made_for() { # purpose
    stamped "$venv/.stamp-$1" "$(follows_from "$1")"
}

install() { # from the lock
    # PySpark comes as source: half a gigabyte of jars, which would be compressed into a wheel only
    # to be unpacked again. The option is one of setuptools, which builds what comes as source. And
    # modules are compiled when they are first imported, as most of them never are.
    "$venv/bin/python" -m pip install --progress-bar off --require-hashes --no-compile \
        --no-build-isolation --use-pep517 \
        --config-settings=--build-option=--compression=stored -r "$lock"
}

"$venv/bin/python" -c 'import pip' 2>/dev/null || rm -rf "$venv"
if [ "$purpose" = demo ] && made_for dev; then
    follows_from demo >"$venv/.stamp-demo" # development's lock has all that the demo's has
elif [ "$purpose" = dev ] && made_for demo && ! made_for dev; then
    say "adding to $venv what development needs"
    rm "$venv/.stamp-demo"
    install
    follows_from demo >"$venv/.stamp-demo"
    follows_from dev >"$venv/.stamp-dev"
elif ! made_for "$purpose"; then
    say "making $venv (the first time downloads half a gigabyte, most of it Spark)"
    rm -rf "$venv"
    "$python" -m venv "$venv"
    # Build tools first, from their own lock, so that packages which come as source are built with
    # tools that are locked too.
    "$venv/bin/python" -m pip install --progress-bar off --require-hashes \
        -r requirements/build.lock
    install
    if [ "$purpose" = dev ]; then # whose lock has all that the demo's has
        follows_from demo >"$venv/.stamp-demo"
    fi
    follows_from "$purpose" >"$venv/.stamp-$purpose"
fi

# Flink's process runs the benchmarks from where they lie, and no millrace.
if [ "$venv" != .venv-flink ] && ! stamped "$venv/.stamp-project" "$want_project"; then
    say "installing millrace into $venv, editable"
    rm -f "$venv/.stamp-project"
    # Kept back unless it fails: setuptools warns each time that an editable install is one.
    output=$("$venv/bin/python" -m pip install --progress-bar off --no-deps \
        --no-build-isolation --editable . 2>&1) || {
        echo "$output" >&2
        fail "installing millrace into $venv failed, see above."
    }
    echo "$want_project" >"$venv/.stamp-project"
fi

# --- the servers that the tests start, and what Flink needs beside its wheel ---------------------

case $purpose in
dev)
    "$venv/bin/python" scripts/jars.py || fail "jars are missing, see above."
    "$venv/bin/python" scripts/spark_start.py
    ;;
flink) "$venv/bin/python" scripts/jars.py .flink || fail "jars are missing, see above." ;;
esac

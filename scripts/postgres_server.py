"""Becomes a PostgreSQL server of its own, on a free port of the loopback interface.

    python scripts/postgres_server.py FOLDER [SETTING=VALUE ...]

It makes a database cluster in the folder if there is none, with a user ``millrace`` and a password,
prints on one line how to connect, and turns into the server, which answers a moment later. The
password is in ``password``, and in ``pgpass``, which that line names; what it logs is in ``log``.
As root it becomes the user nobody, as PostgreSQL refuses to run as root. It dies with the process
that started it, and has its old port when it is started again. The tests and the benchmarks start
it.
"""

import ctypes
import grp
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

USER = "millrace"
_PR_SET_PDEATHSIG = 1


def main(home: Path, settings: list[str]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    parent = os.getppid()
    programs = find_programs()
    become_nobody(home)
    os.chdir(home)
    if not (home / "data" / "PG_VERSION").exists():
        make_cluster(home, programs)
    port = (home / "port").read_text()
    said = f"host=127.0.0.1 port={port} user={USER} dbname=postgres passfile={home / 'pgpass'}"
    print(said, flush=True)
    log = os.open(home / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            sys.exit("who started it is gone")
    wanted = [
        f"port={port}", "listen_addresses=127.0.0.1", f"unix_socket_directories={home}", *settings
    ]  # fmt: skip
    options = [word for one in wanted for word in ("-c", one)]
    program = str(programs / "postgres")
    os.execv(program, [program, "-D", str(home / "data"), *options])


def become_nobody(home: Path) -> None:
    if os.getuid() != 0:
        return
    nobody, group = pwd.getpwnam("nobody").pw_uid, grp.getgrnam("nogroup").gr_gid
    os.chown(home, nobody, group)
    os.setgroups([])
    os.setgid(group)
    os.setuid(nobody)


def make_cluster(home: Path, programs: Path) -> None:
    password = home / "password"
    password.touch(0o600)
    password.write_text(secrets.token_hex(8))
    with (home / "programs").open("a") as log:
        subprocess.run(
            [
                str(programs / "initdb"), "--pgdata", str(home / "data"), "--username", USER,
                "--pwfile", str(password), "--auth", "scram-sha-256", "--encoding", "UTF8",
                "--locale", "C", "--no-sync",
            ],
            check=True, stdout=log, stderr=log,
        )  # fmt: skip
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (home / "port").write_text(str(port))
    passfile = home / "pgpass"
    passfile.touch(0o600)
    passfile.write_text(f"127.0.0.1:{port}:*:{USER}:{password.read_text()}\n")


def find_programs() -> Path:
    """Return the directory of initdb and postgres."""
    on_path = shutil.which("initdb")
    found = [Path(on_path).resolve().parent] if on_path else []
    found += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    for directory in found:
        if (directory / "initdb").exists() and (directory / "postgres").exists():
            return directory
    sys.exit(
        "no PostgreSQL server on this machine: initdb and postgres are neither on PATH nor under "
        "/usr/lib/postgresql. `make setup` says how to install it."
    )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])

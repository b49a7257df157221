"""A network of namespaces: each executor is in one of its own, and can be taken off the network.

Spark starts an executor by the ``java`` of its ``JAVA_HOME``. The one here makes a namespace, with
an address on a bridge, and becomes Java in it. All that the executor starts is in it, too.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from pathlib import Path

from hosts import run

#: Of RFC 2544, for networks that are tried; a bridge takes one of its subnets.
_ADDRESSES = "198.18.{}"

_JAVA = """#!/bin/sh
# Of all arguments only the name that an executor tells others is changed.
set -e
case "$*" in *CoarseGrainedExecutorBackend*) ;; *) exec {java} "$@" ;; esac
exec 9< {folder}/number
flock 9
number=$(($(cat {folder}/number) + 1))
echo $number > {folder}/number
exec 9<&-
name={bridge}n$number; address={subnet}.$((number % 250 + 2))
touch {folder}/$name
ip netns add $name
ip link add {bridge}v$number type veth peer name eth0 netns $name
ip link set {bridge}v$number master {bridge} up
ip -n $name address add $address/24 dev eth0
ip -n $name link set eth0 up
ip -n $name link set lo up
echo {bridge}v$number > {folder}/pid-$$
first=yes
for argument in "$@"; do
  if [ $first ]; then set --; first=; fi
  if [ "$before" = --hostname ]; then argument=$address; fi
  set -- "$@" "$argument"; before=$argument
done
export SPARK_LOCAL_IP=$address
exec ip netns exec $name {java} "$@"
"""


class Network:
    """A bridge to which executors are connected.

    Args:
        folder: For what it writes down.

    Attributes:
        java_home: For executors.
        host: Address of the driver.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        (folder / "number").write_text("0")
        self._bridge = f"mr{os.getpid() % 100_000}"
        subnet = _ADDRESSES.format(os.getpid() % 250)
        self.host = f"{subnet}.1"
        run("ip", "link", "add", self._bridge, "type", "bridge")
        run("ip", "address", "add", f"{self.host}/24", "dev", self._bridge)
        run("ip", "link", "set", self._bridge, "up")
        self.java_home = folder / "java"
        java = self.java_home / "bin" / "java"
        java.parent.mkdir(parents=True)
        real = Path(os.environ.get("JAVA_HOME") or Path(_which("java")).resolve().parents[1])
        text = _JAVA.format(
            java=real / "bin" / "java", folder=folder, bridge=self._bridge, subnet=subnet
        )
        java.write_text(text)
        java.chmod(0o755)

    def cut(self, executor: int) -> None:
        """Take a process's namespace off the network."""
        run("ip", "link", "set", self._link(executor), "down")

    def mend(self, executor: int) -> None:
        """Undo that, also where the process has ended since."""
        run("ip", "link", "set", self._link(executor), "up")

    def _link(self, executor: int) -> str:
        """Return what connects a process, which may have begun a moment ago."""
        file, deadline = self._folder / f"pid-{executor}", time.monotonic() + 30
        while not file.exists() or not file.read_text():
            assert time.monotonic() < deadline, f"process {executor} is in no namespace"
            time.sleep(0.05)
        return file.read_text().strip()

    def close(self) -> None:
        """Leave nothing; what was in the namespaces must have ended."""
        for name in self._folder.glob(f"{self._bridge}n*"):
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", "netns", "delete", name.name)
        with contextlib.suppress(subprocess.CalledProcessError):
            run("ip", "link", "delete", self._bridge)


class Disk:
    """A file system of its own, which can be filled.

    Args:
        folder: Where it is mounted.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=512m", "millrace", str(folder))

    def fill(self) -> None:
        """Leave no room, of what is free now."""
        block = bytes(1 << 16)
        with (self._folder / "filler").open("ab", buffering=0) as file:
            with contextlib.suppress(OSError):
                while True:
                    file.write(block)
            with contextlib.suppress(OSError):
                while True:
                    file.write(block[:1])

    def empty(self) -> None:
        """Undo that."""
        (self._folder / "filler").unlink()

    def close(self) -> None:
        """Leave nothing."""
        run("umount", "--lazy", str(self._folder))


def _which(program: str) -> str:
    found = shutil.which(program)
    assert found is not None, program
    return found

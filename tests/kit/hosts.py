"""Hosts on one machine: network namespaces with a name, an address and a temporary folder each.

They are connected by a bridge, which has an address too: of what is on no host, such as the master
of a cluster. The clock of one may be wrong, for Python; packets take longer where the kernel has
``netem``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

#: Of RFC 2544, for networks that are tried.
_ADDRESS = "198.19.{}.{}"
_START = """#!/bin/sh
# Becomes a command on a host: with its name, and with the names of all.
set -e
echo {name} > /proc/sys/kernel/hostname
mount --bind {hosts} /etc/hosts
exec "$@"
"""
#: What each Python process of a host imports as it starts whose clock is wrong.
_AHEAD = """import time

_time, _time_ns = time.time, time.time_ns
time.time = lambda: _time() + {0}
time.time_ns = lambda: _time_ns() + {0} * 10**9
"""


def missing() -> str:
    """Return what there is not, for namespaces and file systems of one's own; "" if all is."""
    if os.geteuid() != 0:
        return "it takes root"
    tools = [tool for tool in ("ip", "flock", "mount") if shutil.which(tool) is None]
    if tools:
        return f"there is no {', '.join(tools)} here"
    name = f"mr{os.getpid()}t"
    try:
        run("ip", "netns", "add", name)
        run("ip", "link", "add", name, "type", "bridge")
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"
    finally:
        for kind in (["link"], ["netns"]):
            with contextlib.suppress(subprocess.CalledProcessError):
                run("ip", *kind, "delete", name)
    return ""


class Host:
    """One of them.

    Attributes:
        name: As its processes have it.
        address: In the network.
        folder: Of its own.
        space: Its network namespace.
        within: The command that becomes another one, on this host.
    """

    def __init__(self, name: str, number: int, hosts: Hosts, folder: Path) -> None:
        self.name = name
        self.address = hosts.address_of(number)
        self.folder = folder
        (folder / "tmp").mkdir(parents=True)
        self.space, self.link = f"{hosts.bridge}n{number}", f"{hosts.bridge}v{number}"
        run("ip", "netns", "add", self.space)
        run(
            "ip",
            "link",
            "add",
            self.link,
            "type",
            "veth",
            "peer",
            "name",
            "eth0",
            "netns",
            self.space,
        )
        run("ip", "link", "set", self.link, "master", hosts.bridge, "up")
        run("ip", "-n", self.space, "address", "add", f"{self.address}/24", "dev", "eth0")
        for device in ("eth0", "lo"):
            run("ip", "-n", self.space, "link", "set", device, "up")
        start = folder / "start"
        start.write_text(_START.format(name=name, hosts=hosts.names))
        start.chmod(0o755)
        enter = ["ip", "netns", "exec", self.space, "unshare", "--uts", "--mount"]
        self.within = [*enter, str(start)]

    def environment(self, ahead_s: int = 0) -> dict[str, str]:
        """Return what its processes have in their environment.

        Args:
            ahead_s: How far its clock is set wrong.
        """
        found = {"SPARK_LOCAL_IP": self.address, "TMPDIR": str(self.folder / "tmp")}
        if ahead_s:
            (self.folder / "sitecustomize.py").write_text(_AHEAD.format(ahead_s))
            found["PYTHONPATH"] = str(self.folder)
        return found

    def pids(self) -> list[int]:
        """Return all its processes."""
        listed = subprocess.run(
            ["ip", "netns", "pids", self.space], check=True, capture_output=True, text=True
        )
        return [int(pid) for pid in listed.stdout.split()]

    def kill(self) -> None:
        """Kill all its processes; the kernel closes their connections."""
        deadline = time.monotonic() + 30
        while (pids := self.pids()) and time.monotonic() < deadline:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def switch_off(self) -> None:
        """Kill all its processes, and let no other host hear of it."""
        run("ip", "link", "set", self.link, "down")
        self.kill()

    def switch_on(self) -> None:
        """Undo that, as to the network."""
        run("ip", "link", "set", self.link, "up")

    def close(self) -> None:
        """Leave nothing."""
        self.kill()
        run("ip", "netns", "delete", self.space)


class Hosts:
    """All of them.

    Args:
        folder: For theirs.
        names: Of them.

    Attributes:
        outside: The address of what is on no host.
    """

    def __init__(self, folder: Path, names: Sequence[str]) -> None:
        folder.mkdir(exist_ok=True)
        self.bridge = f"mh{os.getpid() % 100_000}"
        self._subnet = os.getpid() % 250
        self.outside = self.address_of(0)
        run("ip", "link", "add", self.bridge, "type", "bridge")
        run("ip", "address", "add", f"{self.outside}/24", "dev", self.bridge)
        run("ip", "link", "set", self.bridge, "up")
        self.names = folder / "hosts"
        known = [f"{self.address_of(n)} {name}\n" for n, name in enumerate(["outside", *names])]
        self.names.write_text("127.0.0.1 localhost\n" + "".join(known))
        self._hosts = {name: Host(name, n, self, folder / name) for n, name in enumerate(names, 1)}

    def __getitem__(self, name: str) -> Host:
        return self._hosts[name]

    def address_of(self, number: int) -> str:
        """Return the address of the host of a number."""
        return _ADDRESS.format(self._subnet, number + 1)

    def part(self, one: str, other: str) -> None:
        """Let two hosts not hear each other; all others hear both."""
        self._isolate([one, other], "on")

    def join(self, one: str, other: str) -> None:
        """Undo that."""
        self._isolate([one, other], "off")

    def _isolate(self, names: list[str], state: str) -> None:
        for name in names:
            run("bridge", "link", "set", "dev", self[name].link, "isolated", state)

    def delay(self, milliseconds: float) -> str:
        """Have packets to all hosts take longer; return why they do not, "" if they do."""
        try:
            for host in self._hosts.values():
                run("tc", "qdisc", "add", "dev", host.link, "root", "netem", "delay",
                    f"{milliseconds}ms")  # fmt: skip
        except subprocess.CalledProcessError as error:
            return str(error.stderr.strip())
        return ""

    def close(self) -> None:
        """Leave nothing."""
        for host in self._hosts.values():
            with contextlib.suppress(subprocess.CalledProcessError):
                host.close()
        with contextlib.suppress(subprocess.CalledProcessError):
            run("ip", "link", "delete", self.bridge)


def run(*command: str) -> None:
    """Run a tool.

    Raises:
        CalledProcessError: It has failed; ``stderr`` says why.
    """
    subprocess.run(command, check=True, capture_output=True, text=True)

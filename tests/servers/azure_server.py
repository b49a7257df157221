"""A Blob service of Azure of the tests' own: Azurite, which is Microsoft's emulator.

It checks signatures and has conditional puts. What it was given is there when it is ended and
started again; not when it is killed, as its index is written every few seconds. pytest
loads this file as a plugin.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import secrets
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".azurite" / "node_modules" / ".bin" / "azurite-blob"
VERSION = "3.37.0"
ACCOUNT, CONTAINER = "millrace", "checkpoints"


class AzureServer:
    """Azurite on a free port of the loopback interface, with one account and one container."""

    def __init__(self) -> None:
        if not PROGRAM.exists():
            install = ["npm", "install", "--no-save", "--prefix", str(ROOT / ".azurite")]
            subprocess.run([*install, f"azurite@{VERSION}"], check=True)
        self._home = Path(tempfile.mkdtemp(prefix="millrace-azure-"))
        self.key = base64.b64encode(secrets.token_bytes(32)).decode()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self._make_container()

    def environment(self) -> dict[str, str]:
        """What a client needs in its environment."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": self.key,
            "AZURE_ENDPOINT": f"http://127.0.0.1:{self.port}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
        }

    def start(self) -> None:
        """Start the server and wait until it answers."""
        with (self._home / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
                    "--location", str(self._home / "data"),
                    # The client's version of the protocol may be newer than the emulator.
                    "--skipApiVersionCheck", "--disableTelemetry", "--silent",
                ],
                stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{self.key}"},
            )  # fmt: skip
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                self._status("GET", "/")
                return
            except OSError:
                time.sleep(0.05)
        raise RuntimeError(f"Azurite did not start: {(self._home / 'log').read_text()[-2000:]}")

    def kill(self) -> None:
        """End the server, with requests under way; what it has answered for is on disk."""
        assert self._process is not None
        self._process.terminate()
        self._process.wait()

    def close(self) -> None:
        """End it and leave nothing."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)

    def _make_container(self) -> None:
        """Make the container, by Azure's shared key."""
        date, version = formatdate(usegmt=True), "2021-08-06"
        resource = f"/{ACCOUNT}/{ACCOUNT}/{CONTAINER}\nrestype:container"
        text = f"PUT{12 * chr(10)}x-ms-date:{date}\nx-ms-version:{version}\n{resource}"
        digest = hmac.digest(base64.b64decode(self.key), text.encode(), hashlib.sha256)
        headers = {
            "x-ms-date": date,
            "x-ms-version": version,
            "Authorization": f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}",
        }
        status = self._status("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", headers)
        assert status == 201, status

    def _status(self, method: str, path: str, headers: dict[str, str] | None = None) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            answer.read()
            return answer.status
        finally:
            connection.close()


@pytest.fixture(scope="session")
def azure_server() -> Iterator[AzureServer]:
    """The server of the test session."""
    server = AzureServer()
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def azure(azure_server: AzureServer, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of an unused prefix of the server; how to reach it is in the environment."""
    for name in [name for name in os.environ if name.startswith("AZURE_")]:
        monkeypatch.delenv(name)
    for name, value in azure_server.environment().items():
        monkeypatch.setenv(name, value)
    return f"az://{CONTAINER}/{secrets.token_hex(4)}"

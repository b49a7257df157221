"""A Blob service of Azure of the tests' own: Azurite, which is Microsoft's emulator.

It checks signatures and has conditional puts. What it was given is there when it is ended and
started again; not when it is killed, as its index is written every few seconds. pytest
loads this file as a plugin.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets
import signal
import subprocess
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from store_server import StoreServer, set_environment

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ROOT / ".azurite" / "node_modules" / ".bin" / "azurite-blob"
VERSION = "3.37.0"
ACCOUNT, CONTAINER = "millrace", "checkpoints"


class AzureServer(StoreServer):
    """Azurite, with one account and one container."""

    def __init__(self) -> None:
        if not PROGRAM.exists():
            install = ["npm", "install", "--no-save", "--prefix", str(ROOT / ".azurite")]
            subprocess.run([*install, f"azurite@{VERSION}"], check=True)
        super().__init__("Azurite", ended_by=signal.SIGTERM)
        self.key = base64.b64encode(secrets.token_bytes(32)).decode()
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

    def command(self) -> list[str]:
        return [
            str(PROGRAM), "--blobHost", "127.0.0.1", "--blobPort", str(self.port),
            "--location", str(self.home / "data"),
            # The client's version of the protocol may be newer than the emulator.
            "--skipApiVersionCheck", "--disableTelemetry", "--silent",
        ]  # fmt: skip

    def variables(self) -> dict[str, str]:
        return {"AZURITE_ACCOUNTS": f"{ACCOUNT}:{self.key}"}

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
        status = self.status("PUT", f"/{ACCOUNT}/{CONTAINER}?restype=container", headers)
        assert status == 201, status


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
    set_environment(monkeypatch, "AZURE_", azure_server.environment())
    return f"az://{CONTAINER}/{secrets.token_hex(4)}"

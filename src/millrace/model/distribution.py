"""The distribution: what installers call Millrace, its version, and where it was installed from."""

from __future__ import annotations

import importlib.metadata
import json
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any, Final

from millrace.model.errors import PipelineError

#: The name on package indexes. There, `millrace` is a program of other people.
DISTRIBUTION: Final = "millrace-spark"


def version() -> str:
    """Return the version of Millrace, ``unknown`` in a checkout that is not installed."""
    try:
        return importlib.metadata.version(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        return "unknown"


def requirement() -> str:
    """Return what pip has to install to get the Millrace that runs here.

    A wheel, a checkout or a repository is named by its address, as pip recorded it
    (``direct_url.json``, PEP 610); what came from a package index, by its version.

    Raises:
        PipelineError: Millrace is not installed, or the file or folder that it was installed from
            is gone.

    >>> requirement().split()[0].startswith("millrace-spark")
    True
    """
    try:
        installed = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError:
        raise PipelineError(
            "Millrace runs here without being installed, so a project cannot say what to install. "
            "Install it (`pip install .` in its checkout), or say it: --millrace REQUIREMENT."
        ) from None
    recorded = installed.read_text("direct_url.json")
    if recorded is None:
        return f"{DISTRIBUTION}=={installed.version}"
    return f"{DISTRIBUTION} @ {_address(json.loads(recorded))}"


def _address(recorded: dict[str, Any]) -> str:
    url: str = recorded["url"]
    if "vcs_info" in recorded:
        vcs = recorded["vcs_info"]
        return f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    parts = urllib.parse.urlsplit(url)
    if parts.scheme == "file":
        path = Path(urllib.request.url2pathname(parts.path))
        if not path.exists():
            raise PipelineError(
                f"Millrace was installed from {path}, which is not there any more. Say what the "
                "project is to install: --millrace REQUIREMENT, for example a wheel's path."
            )
    return url

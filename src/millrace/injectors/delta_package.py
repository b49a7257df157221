"""What a Delta table needs here: the package deltalake, and a path that is mounted."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from millrace.model.errors import PipelineError
from millrace.store import local_path

#: Of ``deltalake``: (major, minor).
_OLDEST: Final = (1, 6)


def require_deltalake(who: str, where: str) -> None:
    """Refuse to go on without a ``deltalake`` that keeps application transactions apart.

    Args:
        who: Needs it, for messages.
        where: It is needed, for messages.

    Raises:
        PipelineError: It is not installed, or too old.
    """
    install = f"{where}: pip install 'millrace-spark[delta]'."
    try:
        from deltalake import __version__ as version
    except ImportError as missing:
        raise PipelineError(f"{who} needs the package deltalake, {install}") from missing
    if tuple(int(part) for part in version.split(".")[:2]) < _OLDEST:
        raise PipelineError(
            f"{who} found deltalake {version}, which can add an epoch twice: two drivers' commits "
            f"of it do not conflict. It needs 1.6 or later, {install}"
        )


def mounted(path: str, who: str, otherwise: str) -> Path:
    """Return the directory of a table.

    Args:
        path: As it was given.
        who: It was given to, for messages.
        otherwise: What to do about a table that is elsewhere, for messages.

    Raises:
        PipelineError: It is no local or mounted path.

    >>> mounted("file:///lake/trips", "Delta('...')", "Copy it.")
    PosixPath('/lake/trips')
    """
    if not path or ("://" in path and not path.startswith("file://")):
        raise PipelineError(
            f"{who}: expected a local or mounted path, which driver and workers reach. {otherwise}"
        )
    return local_path(path)

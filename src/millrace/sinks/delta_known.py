"""Which Delta table it is that an epoch was merged into, and up to which version that is known.

A table by key has rows of epochs that nobody will make again. So where somebody else has made it
anew, overwritten it or set it back since, merging into what is there now would pass over the loss.

::

    _millrace_table    {"id": "...", "version": 12}, after each commit; readers pass over it
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

_NAME: Final = "_millrace_table"
#: What Delta calls a write of everything anew, or of what was once.
_REWRITES: Final = frozenset({"CREATE OR REPLACE TABLE", "REPLACE TABLE", "RESTORE", "TRUNCATE"})


def rewritten(root: Path, table: Any) -> str:
    """Return how a table was rewritten since it was noted; empty if it was not.

    Args:
        root: Its directory.
        table: A ``deltalake.DeltaTable``, as it is now.
    """
    try:
        known = json.loads((root / _NAME).read_text())
    except FileNotFoundError:
        return ""
    advice = (
        "Rows of earlier epochs may be gone, and are not made again. Name another path and start "
        f"with a new checkpoint; or, to go on with what is there, remove {root / _NAME}."
    )
    if known["id"] != table.metadata().id:
        return f"somebody has made the table anew: its id is another one. {advice}"
    if table.version() < known["version"]:
        return (
            f"the table is at version {table.version()}, and was at {known['version']}: its log "
            f"was set back. {advice}"
        )
    since = table.version() - known["version"]
    for commit in table.history(since) if since else ():
        operation = str(commit.get("operation", ""))
        mode = str(commit.get("operationParameters", {}).get("mode", ""))
        if operation in _REWRITES or (operation == "WRITE" and mode == "Overwrite"):
            what = f"{operation} {mode}".strip()
            return f"somebody has rewritten it in version {commit['version']} ({what}). {advice}"
    return ""


def note(root: Path, table: Any) -> None:
    """Note which table it is, and its version. Older word than there could be does no harm."""
    noting = root / f"{_NAME}.new"
    noting.write_text(json.dumps({"id": table.metadata().id, "version": table.version()}))
    noting.replace(root / _NAME)

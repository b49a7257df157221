"""Connections to PostgreSQL: without passwords in the open, and failures that say what to do."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from millrace.model.errors import PipelineError, SinkError

if TYPE_CHECKING:
    import psycopg

#: A server that does not answer must not hold an epoch for as long as TCP would.
_DEFAULTS = {"connect_timeout": "10", "application_name": "millrace"}

_QUOTED = re.compile('".*"', re.DOTALL)

_SECRETS = (
    "password",
    "sslpassword",
    "scram_client_key",
    "scram_server_key",
    "oauth_client_secret",
)


class Away(SinkError):
    """The server cannot be reached, or broke off: worth another attempt."""


def checked(conninfo: str) -> str:
    """Return a connection string with defaults filled in.

    Raises:
        PipelineError: psycopg is missing, or the string is malformed or holds a password.
    """
    try:
        from psycopg.conninfo import conninfo_to_dict, make_conninfo
    except ImportError as missing:
        raise PipelineError(
            "mr.PostgreSQL needs the package psycopg, on the driver and on the workers: "
            "pip install 'millrace-spark[postgres]'."
        ) from missing
    import psycopg

    try:
        given: dict[str, Any] = dict(conninfo_to_dict(conninfo))
    except (psycopg.ProgrammingError, TypeError) as malformed:
        # The string itself is not repeated: it may hold a password. libpq quotes of it what it
        # could not read, which may be the password, or have a quote of its own.
        why = _QUOTED.sub("...", str(malformed)).strip()
        raise PipelineError(
            "mr.PostgreSQL: expected a connection string such as 'postgresql://user@host/database' "
            f"or 'host=... dbname=...'; libpq says: {why}"
        ) from None
    found = [name for name in _SECRETS if given.get(name)]
    if found:
        raise PipelineError(
            f"mr.PostgreSQL: the connection string holds a {found[0]}, which would travel with "
            "every task and show up in logs. Leave it out, and give it to driver and workers "
            "through the environment (PGPASSWORD; on a cluster spark.executorEnv.PGPASSWORD) or a "
            "password file (PGPASSFILE, ~/.pgpass)."
        )
    return make_conninfo("", **(_DEFAULTS | given))


def connect(conninfo: str) -> psycopg.Connection[Any]:
    """Return a new connection in autocommit mode.

    Raises:
        Away: The server cannot be reached or is starting up.
        SinkError: It refuses the user, or has no such database.
    """
    import psycopg

    try:
        return psycopg.connect(conninfo, autocommit=True)
    except psycopg.OperationalError as error:
        raise Away(
            f"PostgreSQL cannot be reached: {said(error)} Is the server up, may this host and user "
            "connect, and is the password in this process's environment or password file?"
        ) from None


def said(error: psycopg.Error) -> str:
    """Return what the server or libpq said, in one line that ends as a sentence."""
    primary, detail = error.diag.message_primary, error.diag.message_detail
    text = " ".join(part for part in (primary, detail) if part) or str(error)
    line = " ".join(text.split())
    return line if line.endswith((".", "?", "!")) else f"{line}."

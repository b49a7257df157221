"""``millrace explain``: how a pipeline runs, from the code that makes it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from millrace.model.pipeline import Pipeline


@click.command("explain")
@click.argument("pipeline", metavar="MODULE:NAME")
def explain(pipeline: str) -> None:
    """Print the stages of a pipeline, what is fused into them, its edges, keys and windows.

    NAME in MODULE is a pipeline, or a function that returns one when it is called without
    arguments. Modules are looked for in the current directory too. Starts no Spark.
    """
    click.echo(str(_found(pipeline).explain()))


def _found(path: str) -> Pipeline:
    module, _, name = path.partition(":")
    if not module or not name:
        raise click.ClickException(
            f"{path!r} names no pipeline. Expected MODULE:NAME, such as my_package.jobs:pipeline."
        )
    sys.path.insert(0, str(Path.cwd()))
    try:
        found: Any = importlib.import_module(module)
    except ModuleNotFoundError as missing:
        if missing.name is None or not f"{module}.".startswith(f"{missing.name}."):
            raise
        raise click.ClickException(
            f"there is no module {missing.name!r} in {Path.cwd()} or among what is installed."
        ) from None
    finally:
        sys.path.remove(str(Path.cwd()))
    try:
        found = getattr(found, name)
    except AttributeError:
        raise click.ClickException(f"module {module!r} has no {name!r}.") from None
    made = found() if callable(found) else found
    if not isinstance(made, Pipeline):
        raise click.ClickException(
            f"{path} is {type(made).__name__}; expected an mr.Pipeline, or a function that returns "
            "one."
        )
    return made

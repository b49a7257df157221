"""``millrace explain``: how a pipeline runs, from the code that makes it."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any

import click

from millrace.model.errors import MillraceError, PipelineError
from millrace.pipeline import Pipeline


@click.command("explain", short_help="Show how a pipeline runs.")
@click.argument("pipeline", metavar="MODULE:NAME")
def explain(pipeline: str) -> None:
    """Print the stages of a pipeline, what is fused into them, its edges, keys and windows.

    NAME in MODULE is a pipeline, or a function that returns one when it is called without
    arguments. Modules are looked for in the current directory too. Starts no Spark.
    """
    click.echo(str(_found(pipeline).explain()))


def _found(path: str) -> Pipeline:
    name, _, attribute = path.partition(":")
    if not name or not attribute:
        raise PipelineError(
            f"{path!r} names no pipeline. Expected MODULE:NAME, such as my_package.jobs:pipeline."
        )
    module = _module(name, attribute)
    try:
        found: Any = getattr(module, attribute)
    except AttributeError:
        there = [n for n, value in vars(module).items() if isinstance(value, Pipeline)]
        raise PipelineError(
            f"module {name!r} has no {attribute!r}."
            + (f" It has {', '.join(there)}." if there else "")
        ) from None
    made = _made(path, found) if callable(found) else found
    if not isinstance(made, Pipeline):
        raise PipelineError(
            f"{path} is {type(made).__name__}; expected an mr.Pipeline, or a function that returns "
            "one."
        )
    return made


def _module(name: str, attribute: str) -> ModuleType:
    if name.endswith(".py"):
        dotted = ".".join(PurePath(name).with_suffix("").parts)
        raise PipelineError(f"{name!r}: MODULE is not a file: write {dotted}:{attribute}.")
    nowhere = PipelineError(
        f"there is no module {name!r} in {Path.cwd()} or among what is installed."
    )
    if name.startswith("."):  # to Python, relative to a package, and there is none
        raise nowhere
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise nowhere from None
        raise _failed(f"module {name!r} cannot be imported", error) from error
    finally:
        sys.path.remove(str(Path.cwd()))


def _made(path: str, maker: Any) -> Any:
    """Return what a function without arguments makes."""
    needed = _needed(maker)
    if needed:
        kind = "class" if inspect.isclass(maker) else "function"
        raise PipelineError(
            f"{path} is a {kind} that needs {' and '.join(needed)}, and explain calls it without "
            "arguments. Give them defaults, or name a function without parameters that calls it, "
            'or a pipeline. No source is read: p.inject("name") without one will do.'
        )
    try:
        return maker()
    except MillraceError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(f"{path}() failed", error) from error


def _needed(maker: Any) -> list[str]:
    """Return the parameters that a call must give."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):  # of some that are written in C nothing is known
        return []
    return [
        one.name
        for one in parameters
        if one.default is one.empty and one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def _failed(what: str, error: BaseException) -> PipelineError:
    """Return an error that says where a user's code failed."""
    if isinstance(error, SyntaxError):
        said, file, line = error.msg, error.filename, error.lineno
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said, file, line = str(error), last.filename, last.lineno
    where = f"{PurePath(file).name}, line {line}" if file else "its place is unknown"
    return PipelineError(
        f"{what}: {type(error).__name__}: {said} ({where}). `millrace --debug explain ...` shows "
        "the traceback."
    )


__all__ = ["explain"]

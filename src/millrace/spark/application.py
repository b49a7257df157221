"""Applications: the pipeline that an argument of the command line names, from the user's code.

A driver that goes on with changed code loads it *anew*: the module that is named and those that
belong to it are imported once more, whatever they were before. Workers still have what they
imported, so the classes of these modules travel to them by value.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import inspect
import os
import re
import symtable
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePath
from types import ModuleType
from typing import Any, Final

import cloudpickle

from millrace.model.declarations import Declarations
from millrace.model.errors import MillraceError, PipelineError

#: What Python says of ``from .formats import Bid`` in a file that is run by itself.
_NO_PARENT: Final = "attempted relative import with no known parent package"
#: What gives a module names that are not in its text.
_BINDS_BY_RUNNING: Final = re.compile(
    r"import\s*\(?\s*\*|\b(global|__getattr__|globals|locals|vars|exec|eval|setattr|__dict__)\b"
    r"|sys\s*\.\s*modules"
)
#: Folders in which modules are no more than neighbours.
_SHARED = ("site-packages", "dist-packages")


def pipeline_at(path: str, command: str, *, anew: bool = False, **given: Any) -> Any:
    """Return the pipeline that an argument of the command line names.

    Args:
        path: ``package.module:NAME``, or ``path/to/module.py:NAME``. NAME is a pipeline, or is
            called and returns one.
        command: The command, for messages.
        anew: Whether code that was imported before is imported again: the module itself, all of its
            package, or else what is in its folder. Where that fails, all is as it was.
        given: What is given to a parameter of that name, where there is one.

    Raises:
        PipelineError: It names none, or the code that makes it fails.
    """
    name, attribute = named_by(path)
    with _importable(name):
        module = _again(name, command) if anew else _module(name, command)
        try:
            found: Any = getattr(module, attribute)
        except AttributeError:
            raise _lacks(name, attribute, _pipelines_of(module) + _functions_of(module)) from None
        made = _made(path, found, command, given) if callable(found) else found
    if not isinstance(made, Declarations):
        raise PipelineError(
            f"{path} is {type(made).__name__}; expected an mr.Pipeline, or a function that returns "
            "one."
        )
    return made


def named_by(path: str) -> tuple[str, str]:
    """Return the module or file that an argument names, and the name in it; nothing is run.

    Raises:
        PipelineError: It has another form, or there is no such file, or module.
    """
    name, _, attribute = path.rpartition(":")
    if not name or not attribute:
        raise PipelineError(
            f"{path!r} names no pipeline. Expected MODULE:NAME, such as my_package.jobs:pipeline, "
            "or jobs.py:pipeline."
        )
    if name.endswith(".py"):
        if not Path(name).is_file():
            raise PipelineError(f"there is no file {name!r} in {Path.cwd()}.")
    elif not _is_there(name.partition(".")[0]):
        raise _nowhere(name)
    return name, attribute


def check_named(path: str) -> None:
    """Refuse an argument that names nothing, as far as the text of the module says; nothing is run.

    Raises:
        PipelineError: As of :func:`named_by`; or the module gives nothing that name.
    """
    name, attribute = named_by(path)
    source = _source(name)
    if source is None or _BINDS_BY_RUNNING.search(source):
        return
    try:
        names = symtable.symtable(source, name, "exec")
    except SyntaxError:  # to be told with the rest of what importing it meets
        return
    bound = {symbol.get_name(): symbol for symbol in names.get_symbols() if _is_bound(symbol)}
    if attribute in bound:
        return
    own = [
        known
        for known, symbol in bound.items()
        if not known.startswith("_")
        and not symbol.is_imported()
        and all(space.get_type() == "function" for space in symbol.get_namespaces())
    ]
    raise _lacks(name, attribute, own)


def _source(name: str) -> str | None:
    """Return the text of a module or file; None if it is not told without importing a package."""
    if name.endswith(".py"):
        return _decoded(Path(name).read_bytes())
    if "." in name or name in sys.modules:
        return None
    spec = importlib.machinery.PathFinder.find_spec(name, [str(Path.cwd()), *sys.path])
    # What a package imports of itself becomes a name of it.
    if spec is None or spec.submodule_search_locations is not None or spec.origin is None:
        return None
    return _decoded(Path(spec.origin).read_bytes()) if spec.origin.endswith(".py") else None


def _decoded(code: bytes) -> str | None:
    try:
        return importlib.util.decode_source(code)
    except (SyntaxError, UnicodeDecodeError):
        return None


def _is_bound(symbol: symtable.Symbol) -> bool:
    return symbol.is_assigned() or symbol.is_imported() or symbol.is_namespace()


def _lacks(name: str, attribute: str, there: list[str]) -> PipelineError:
    return PipelineError(
        f"module {name!r} has no {attribute!r}." + (f" It has {', '.join(there)}." if there else "")
    )


def _is_there(root: str) -> bool:
    """Return whether a module, or the first of a path of packages, can be imported from here."""
    if not root:  # to Python, relative to a package, and there is none
        return False
    return (
        root in sys.modules
        or Path(root).is_dir()
        or Path(f"{root}.py").is_file()
        or importlib.util.find_spec(root) is not None
    )


def _nowhere(name: str) -> PipelineError:
    return PipelineError(f"there is no module {name!r} in {Path.cwd()} or among what is installed.")


@contextmanager
def _importable(name: str) -> Iterator[None]:
    """Let a module or file, and what makes its pipeline, import what is beside it.

    Workers import that too where they look. Where they do not, it travels to them by value.
    """
    of_file = name.endswith(".py")
    folder = Path(name).resolve().parent if of_file else Path.cwd()
    before = set(sys.modules)
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
    looked_in = [Path.cwd(), *map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    if of_file and folder not in (known.resolve() for known in looked_in):
        for known in sys.modules.keys() - before:
            if _home(known.partition(".")[0]) == folder:
                cloudpickle.register_pickle_by_value(sys.modules[known])


def _home(root: str) -> Path | None:
    """Return the folder in which a module, or package, is; None of what is in no file."""
    module = sys.modules.get(root)
    places = [*getattr(module, "__path__", ())] or [getattr(module, "__file__", None)]
    return Path(places[0]).resolve().parent if isinstance(places[0], str) else None


def _pipelines_of(module: ModuleType) -> list[str]:
    return [name for name, value in vars(module).items() if isinstance(value, Declarations)]


def _functions_of(module: ModuleType) -> list[str]:
    """Return the names of a module's own functions, one of which may make a pipeline."""
    return [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and value.__module__ == module.__name__
        and not name.startswith("_")
    ]


def _again(name: str, command: str) -> ModuleType:
    """Return a module, imported once more with what belongs to it."""
    before = {known: sys.modules.pop(known) for known in _belonging(name)}
    importlib.invalidate_caches()
    try:
        module = _module(name, command)
    except BaseException:
        sys.modules.update(before)
        raise
    for known in _belonging(name):
        cloudpickle.register_pickle_by_value(sys.modules[known])
    return module


def _belonging(name: str) -> list[str]:
    """Return the names of the imported modules that belong to an application."""
    root = name.partition(".")[0]
    if name.endswith(".py"):
        folder = Path(name).resolve().parent
    elif (there := sys.modules.get(root)) is None or (file := there.__file__) is None:
        return []
    elif hasattr(there, "__path__"):
        return [known for known in [*sys.modules] if f"{known}.".startswith(f"{root}.")]
    else:
        folder = Path(file).resolve().parent
        if folder.name in _SHARED:
            return [root]
    return [
        known
        for known, module in [*sys.modules.items()]
        if known != "__main__"
        and isinstance(file := getattr(module, "__file__", None), str)
        and Path(file).resolve().parent == folder
    ]


def _module(name: str, command: str) -> ModuleType:
    if name.endswith(".py"):
        return _file(Path(name), command)
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}."):
            raise _nowhere(name) from None
        raise _failed(f"module {name!r} cannot be imported", error, command) from error


def _file(path: Path, command: str) -> ModuleType:
    """Return a file as a module."""
    # Under a name that hides no module, and is no __main__: what stands there only starts it.
    spec = importlib.util.spec_from_file_location(f"millrace_app_{path.stem}", path)
    assert spec is not None, "a file of Python can be loaded"
    assert spec.loader is not None, "by the loader of its kind"
    module = importlib.util.module_from_spec(spec)
    # Where a class says it is from, it must be found.
    sys.modules[module.__name__] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise _failed(f"file {str(path)!r} cannot be imported", error, command) from error
    # Nobody else can import it under that name, so its classes travel to workers by value.
    cloudpickle.register_pickle_by_value(module)
    return module


def _made(path: str, maker: Any, command: str, given: dict[str, Any]) -> Any:
    """Return what a function makes of what is given."""
    parameters = _parameters(maker)
    taken = {name: value for name, value in given.items() if name in parameters}
    needed = [name for name, must in parameters.items() if must and name not in taken]
    if needed:
        kind = "class" if inspect.isclass(maker) else "function"
        how = f"with nothing but {' and '.join(given)}" if given else "without arguments"
        # Who gives a session runs the pipeline, and reads.
        unread = "" if given else ' No source is read: p.inject("name") without one will do.'
        raise PipelineError(
            f"{path} is a {kind} that needs {' and '.join(needed)}, and {command} calls it {how}. "
            "Give them defaults, or name a function without parameters that calls it, "
            f"or a pipeline.{unread}"
        )
    try:
        return maker(**taken)
    except MillraceError:
        raise
    except (Exception, SystemExit) as error:
        raise _failed(f"{path}() failed", error, command) from error


def _parameters(maker: Any) -> dict[str, bool]:
    """Return the names of a function's parameters, and whether a call must give them."""
    try:
        parameters = inspect.signature(maker).parameters.values()
    except (TypeError, ValueError):  # of some that are written in C nothing is known
        return {}
    return {
        one.name: one.default is one.empty
        for one in parameters
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    }


def _failed(what: str, error: BaseException, command: str) -> PipelineError:
    """Return an error that says where a user's code failed."""
    if isinstance(error, SyntaxError):
        said, file, line = error.msg, error.filename, error.lineno
    else:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said, file, line = str(error), last.filename, last.lineno
        if said == _NO_PARENT:
            said += "; to be part of its package it is named package.module:NAME"
    where = f"{PurePath(file).name}, line {line}" if file else "its place is unknown"
    return PipelineError(
        f"{what}: {type(error).__name__}: {said} ({where}). `millrace --debug {command} ...` "
        "shows the traceback."
    )

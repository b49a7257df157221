"""What runs for each figure: other benchmarks, as commands, and what they have written."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_REPOSITORY = Path(__file__).parents[2]
#: Of one benchmark; none that is well takes half as long.
_PATIENCE_S = 2_400
_COMBINATIONS = ",".join(
    f"millrace-realtime{options}"
    for options in ("", "-weak", "-at-least-once", "-weak-at-least-once")
)
_RATE = 100
_TASKS = (1, 2, 4)


@dataclass(frozen=True)
class Part:
    """One figure of the paper.

    Attributes:
        name: For ``--parts``.
        commands: By a name of its own, module and arguments of each benchmark that it needs; one
            for short runs, and one for others.
    """

    name: str
    commands: Callable[[bool], dict[str, Sequence[str]]]


def _latency(*arguments: str) -> Callable[[bool], Sequence[str]]:
    def command(quick: bool) -> Sequence[str]:
        seconds = ("--seconds", "5", "--warm-up", "8") if quick else ()
        seconds = seconds or ("--seconds", "30", "--warm-up", "30")
        return ("latency", "--synthetic", "--to", "code", *arguments, *seconds)

    return command


def _figure_13(quick: bool) -> dict[str, Sequence[str]]:
    made = _latency("--rates", str(2 * _RATE), "--stages", "2,4", "--rivals", _COMBINATIONS)
    return {"latency": made(quick)}


def _figure_14(quick: bool) -> dict[str, Sequence[str]]:
    rival = ("--rivals", "millrace-realtime")
    return {
        f"{tasks} tasks": _latency(
            *("--partitions", str(tasks), "--rates", str(tasks * _RATE), *rival)
        )(quick)
        for tasks in _TASKS
    }


def _figure_15(quick: bool) -> dict[str, Sequence[str]]:
    seconds = ("--seconds", "10", "--warm-up", "15") if quick else ()
    return {
        "epochs": ("watermark_lag", *seconds),
        "real time": ("watermark_lag", "--realtime", *seconds),
    }


def _figure_16(quick: bool) -> dict[str, Sequence[str]]:
    return {"cache": ("cache_bound", *(("--keys", "20000", "--epochs", "20") if quick else ()))}


def _two_phase(quick: bool) -> dict[str, Sequence[str]]:
    return {"hot key": ("hot_key", *(("--records", "400000") if quick else ()))}


def _skew(quick: bool) -> dict[str, Sequence[str]]:
    return {"skew": ("skew", *(("--records", "40000") if quick else ()))}


PARTS = (
    Part("latency", _figure_13),
    Part("scale", _figure_14),
    Part("lag", _figure_15),
    Part("cache", _figure_16),
    Part("two-phase", _two_phase),
    Part("skew", _skew),
)


class PartFailed(Exception):
    """A benchmark failed, or was not over in time; with the end of what it printed."""


def run(part: Part, *, quick: bool) -> dict[str, Any]:
    """Run what a part needs, and return what each has written, by its name in the part.

    Raises:
        PartFailed: With the command, and the end of what it printed.
    """
    return {name: _run(command) for name, command in part.commands(quick).items()}


def _run(command: Sequence[str]) -> dict[str, Any]:
    module, *arguments = command
    with tempfile.TemporaryDirectory(prefix="millrace-evaluation-") as folder:
        out = Path(folder) / "out.json"
        whole = [sys.executable, "-m", f"benchmarks.{module}", *arguments, "--out", str(out)]
        print("  python", *whole[1:-2], flush=True)
        try:
            done = subprocess.run(
                whole,
                cwd=_REPOSITORY,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as late:
            raise PartFailed(f"{' '.join(whole[1:-2])}: not over in {_PATIENCE_S} s") from late
        if done.returncode or not out.exists():
            raise PartFailed(f"{' '.join(whole[1:-2])} failed:\n{done.stdout[-2000:]}")
        found: dict[str, Any] = json.loads(out.read_text())
        return found

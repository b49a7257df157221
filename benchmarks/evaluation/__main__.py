"""Command line of the evaluation; the package's docstring says what it runs."""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks import evaluation
from benchmarks.arguments import among
from benchmarks.evaluation import parts, pictures, report
from benchmarks.machine import describe
from benchmarks.page import PAGE, page

_RESULTS = Path(__file__).parents[1] / "results"
_PICTURES = PAGE.parent / "pictures"


def main() -> None:
    """Run the parts, print the tables, draw, and write everything down."""
    arguments = _parser().parse_args()
    document = arguments.document if arguments.document is not None else not arguments.quick
    machine = describe()
    results: dict[str, Any] = {
        "benchmark": "evaluation",
        "machine": machine,
        "command": " ".join(["python -m benchmarks.evaluation", *sys.argv[1:]]),
        "quick": arguments.quick,
        "parts": {},
        "failures": {},
    }
    started = dt.datetime.fromisoformat(machine["at"])
    named = _RESULTS / f"evaluation-{started:%Y-%m-%d-%H%M}.json"
    out = arguments.out or named
    folder = _PICTURES if document else Path(tempfile.mkdtemp(prefix="evaluation-"))
    drawn: dict[str, str] = {}
    began = time.monotonic()
    for part in parts.PARTS:
        if part.name not in arguments.parts:
            continue
        print(f"{part.name}:", flush=True)
        try:
            results["parts"][part.name] = found = parts.run(part, quick=arguments.quick)
            drawn[part.name] = f"pictures/{pictures.draw(part.name, found, folder).name}"
        except parts.PartFailed as failure:
            results["failures"][part.name] = str(failure)
            print(f"  FAILED: {failure}", flush=True)
        out.write_text(json.dumps(results) + "\n")
    text = report.markdown(results, drawn)
    print(text)
    print(f"\n{(time.monotonic() - began) / 60:.1f} minutes; written to {out}; drawn in {folder}")
    if document:
        PAGE.write_text(page())
    sys.exit(1 if results["failures"] else 0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evaluation",
        description=evaluation.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = [part.name for part in parts.PARTS]
    parser.add_argument("--parts", type=among(*names), default=names)
    parser.add_argument("--quick", action="store_true", help="short runs: a look, not a result")
    parser.add_argument(
        "--document",
        action=argparse.BooleanOptionalAction,
        help="write docs/benchmarks.md and its pictures (default: unless --quick)",
    )
    parser.add_argument("--out", type=Path, help="results file (default: benchmarks/results/…)")
    return parser


if __name__ == "__main__":
    main()

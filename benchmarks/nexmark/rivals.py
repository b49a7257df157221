"""The contenders by name, what each has no words for, and the process that runs one of them.

``python -m benchmarks.nexmark.rivals JOB.json OUTCOME.json``: the parent starts it, so that each
has a fresh interpreter and a fresh JVM.
"""

from __future__ import annotations

import importlib
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.nexmark.job import ALL, SMALL, Job, Outcome

#: Where each contender's ``session`` and ``run`` are. Names, not functions: a contender must not
#: load, and count as its memory, the libraries of the others.
CONTENDERS = {
    "millrace": "millrace_queries",
    "millrace-realtime": "millrace_live",
    "spark": "spark_queries",
    "flink": "flink_queries",
}

#: Contender -> query -> why not.
CANNOT: dict[str, dict[str, str]] = {
    "millrace": {},
    "millrace-realtime": {},
    "spark": {
        "q4": "an aggregate of an aggregate without windows",
        "q6": "the last ten by event time: no ROW_NUMBER or OVER on a stream",
        "q9": "the winning bid: no ROW_NUMBER on a stream, and no bound that stands in the row",
    },
    "flink": {
        "q6": "OVER cannot take the changelog of the winning bids",
        "q12": "windows of the clock that are open when bounded input ends never fire",
    },
}


def main(job_path: Path, outcome_path: Path) -> None:
    """Run the job three times, or, if nothing is timed, once, and write its outcome."""
    job = Job.load(job_path)
    module = importlib.import_module(f"benchmarks.nexmark.{CONTENDERS[job.rival]}")
    session = module.session(job)
    run: Callable[[Any, Job, Path, str], None] = module.run
    timed = []
    runs = [("warm-up", SMALL), ("again", SMALL)] if job.timed else []
    for name, part in [*runs, ("all", ALL)]:
        began_s = time.time()
        run(session, job, job.input_dir / part, name)
        timed.append((began_s, time.time()))
    Outcome(timed[-2] if job.timed else timed[-1], timed[-1]).dump(outcome_path)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))

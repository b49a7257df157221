"""Runs one contender on one query in its own process, measures it, and asks the oracle."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb

from benchmarks import environments
from benchmarks.contest import Contender, run_process
from benchmarks.measure import TreeSampler
from benchmarks.nexmark.job import ALL, Job, Outcome
from benchmarks.nexmark.workload import BATCHES, DISORDER_US, Workload
from millrace_examples.nexmark import oracle, results, suite

_MODULE = "benchmarks.nexmark.rivals"
#: Of tables that Spark writes again when they change, what tells a row.
_KEYS = {"q12": "bidder, start", "q18": "bidder, auction", "q19": "auction, place"}
#: Of what Flink tells in place of a row without taking that back, likewise. A key's rows are of one
#: task, whose files have numbers.
_UPSERTED = {"q9": "auction"}
_PLACE = "regexp_extract(filename, '-([0-9]+)$', 1)::INT DESC, file_row_number DESC"
_NOT_THEIRS = ("op", "filename", "file_row_number")
_LAST = "QUALIFY row_number() OVER (PARTITION BY {} ORDER BY {}) = 1"
#: That all events must take longer than a few, for the difference to be more than noise.
_LEAST_S = 1.0
#: Completed epochs after which a run is killed.
_EPOCHS = 3


@dataclass(frozen=True)
class Measurement:
    """One contender's figures on one query.

    Attributes:
        rival: The contender.
        query: The query.
        events: All of them.
        verdict: The oracle's.
        agrees: What it comes to.
        records_per_s: Of what all events are more than a twentieth of them; None if that took less
            than a second, which tells nothing.
        cpu_s_per_million: Likewise.
        seconds: Of the run over all events, its start included.
        start_s: What remains of it with no events.
        peak_mib: Of the process tree, warm-up included.
        load_average: Of the machine.
    """

    rival: str
    query: str
    events: int
    verdict: str
    agrees: bool
    records_per_s: float | None
    cpu_s_per_million: float | None
    seconds: float
    start_s: float
    peak_mib: float
    load_average: float


class Referee:
    """Has the oracle's database of one workload, and the events themselves.

    Args:
        workload: Its files are made unless they are there.
        work_dir: Files that outlive a run, and temporary folders that do not.
        cores: Task slots or workers.
        timeout_s: Seconds after which a contender is killed.
    """

    def __init__(self, workload: Workload, work_dir: Path, cores: int, timeout_s: float) -> None:
        self._workload = workload
        self._work_dir = work_dir
        self._cores = cores
        self._timeout_s = timeout_s
        self._input = workload.make(work_dir)
        self._database = oracle.database_of_files(self._input / ALL / BATCHES)

    def measure(self, rival: str, query: str) -> Measurement:
        """Run a contender once and return its figures.

        Raises:
            ContenderFailed: With the rival's name and where what it printed is kept.
        """
        python, jars = environments.flink() if rival == "flink" else (sys.executable, [])
        with self._scratch(rival, [query], jars) as (scratch, job):
            sampler = run_process(rival, _MODULE, scratch, self._timeout_s, python)
            outcome = Outcome.load(scratch / "outcome.json")
            return self._measurement(job, outcome, sampler, self.verdict(job, query))

    def kill(self, queries: Sequence[str] = suite.QUERIES) -> Iterator[tuple[str, results.Verdict]]:
        """Run queries as one pipeline, kill all of its processes, go on, and yield the verdicts.

        Raises:
            ContenderFailed: It was over before it could be killed, or failed.
        """
        with self._scratch("millrace", list(queries), [], timed=False) as (scratch, job):
            with Contender("millrace", _MODULE, scratch) as contender:
                completed = Path(job.checkpoint("all")) / "epochs"
                deadline = time.monotonic() + self._timeout_s
                while not completed.exists() or len(list(completed.iterdir())) < 2 * _EPOCHS:
                    if contender.ended:
                        raise contender.failure("it was over before it could be killed")
                    if time.monotonic() > deadline:
                        raise contender.failure("it did not come to be killed in time")
                    time.sleep(0.05)
                contender.sampler.kill_tree()
            run_process("millrace", _MODULE, scratch, self._timeout_s)
            for query in queries:
                yield query, self.verdict(job, query)

    def verdict(self, job: Job, query: str) -> results.Verdict:
        """Return what the oracle says of what was written."""
        files = sorted(map(str, job.results(query).rglob("*part-*")))
        files += sorted(map(str, job.results(query).rglob("*.parquet")))
        # Those of a checkpoint or an epoch that is not over begin with a dot or an underscore.
        whole = [
            name
            for name in dict.fromkeys(files)
            if not any(part[0] in "._" for part in Path(name).relative_to(job.scratch_dir).parts)
            and Path(name).is_file()
        ]
        if not whole:
            return results.Verdict(len(oracle.answer(query, self._database)), -1, 0, [])
        found = self._database.sql(
            f"SELECT * FROM read_parquet({whole}, union_by_name=true, filename=true, "
            "file_row_number=true)"
        )
        ours = job.rival.startswith("millrace")
        if not ours:
            found = _plain(query, job.rival, found)
        return results.compare(query, found, self._database, clock=False, plain=not ours)

    @contextmanager
    def _scratch(
        self, rival: str, queries: list[str], jars: list[str], *, timed: bool = True
    ) -> Iterator[tuple[Path, Job]]:
        scratch = Path(tempfile.mkdtemp(prefix=f"{rival}-{queries[0]}-", dir=self._work_dir))
        try:
            run = scratch / "run"
            job = Job(rival, queries, self._input, run, self._cores, jars, DISORDER_US, timed)
            job.scratch_dir.mkdir()
            job.dump(scratch / "job.json")
            yield scratch, job
        finally:
            shutil.rmtree(scratch, ignore_errors=True)

    def _measurement(
        self, job: Job, outcome: Outcome, sampler: TreeSampler, verdict: results.Verdict
    ) -> Measurement:
        small_s, all_s = (end - start for start, end in (outcome.small_s, outcome.all_s))
        small_cpu, all_cpu = (
            sum(sampler.cpu_s_between(*span).values()) for span in (outcome.small_s, outcome.all_s)
        )
        more, longer_s = self._workload.events - self._workload.small, all_s - small_s
        tells = longer_s >= _LEAST_S
        return Measurement(
            rival=job.rival,
            query=job.queries[0],
            events=self._workload.events,
            verdict=str(verdict),
            agrees=verdict.agrees,
            records_per_s=more / longer_s if tells else None,
            cpu_s_per_million=(all_cpu - small_cpu) / more * 1e6 if tells else None,
            seconds=all_s,
            start_s=small_s - max(longer_s, 0) * self._workload.small / more,
            peak_mib=sampler.peak_bytes_before(outcome.all_s[1]) / 2**20,
            load_average=round(os.getloadavg()[0], 2),
        )


def _plain(query: str, rival: str, found: duckdb.DuckDBPyRelation) -> duckdb.DuckDBPyRelation:
    """Return the rows that another engine's files amount to."""
    if rival == "spark" and query in _KEYS:
        last = _LAST.format(_KEYS[query], "batch DESC")
        return found.query("found", f"SELECT * FROM found {last}")
    if rival == "flink" and query in _UPSERTED:
        last = _LAST.format(_UPSERTED[query], _PLACE)
        return found.query("found", f"SELECT * FROM found {last}")
    if "op" in found.columns:
        columns = ", ".join(f'"{name}"' for name in found.columns if name not in _NOT_THEIRS)
        return found.query(
            "found",
            f"""
            WITH added AS (
                SELECT {columns},
                sum(CASE WHEN op IN ('INSERT', 'UPDATE_AFTER') THEN 1 ELSE -1 END)::BIGINT AS often
                FROM found GROUP BY ALL HAVING often > 0
            )
            SELECT {columns} FROM added, range(1, 1 + often)
            """,
        )
    return found

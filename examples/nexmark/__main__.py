"""Makes Nexmark's events: ``python -m millrace_examples.nexmark --parquet FOLDER``."""

from __future__ import annotations

from pathlib import Path

import click

import millrace as mr
from millrace_examples.nexmark import files
from millrace_examples.nexmark.events import Generator


@click.command()
@click.option("--parquet", type=click.Path(path_type=Path), help="Write Parquet files there.")
@click.option("--json", type=click.Path(path_type=Path), help="Write JSON files there.")
@click.option("--kafka", metavar="HOST:PORT", help="Send them to the topics nexmark-bids, ...")
@click.option("--events", default=1_000_000, show_default=True)
@click.option("--rate", default=1_000, show_default=True, help="Events a second of event time.")
@click.option("--skew", default=0.5, show_default=True, help="Share of bids for the newest.")
@click.option("--disorder-ms", default=0, show_default=True, help="How far behind, at most.")
@click.option("--seed", default=7, show_default=True)
@click.option("--batch", default=100_000, show_default=True, help="Events a file of each stream.")
def make(
    parquet: Path | None,
    json: Path | None,
    kafka: str | None,
    events: int,
    rate: int,
    skew: float,
    disorder_ms: int,
    seed: int,
    batch: int,
) -> None:
    """Make people, auctions and bids, the same for the same seed."""
    if not (parquet or json or kafka):
        raise click.UsageError("Where to? Expected one of --parquet, --json and --kafka.")
    generator = Generator(seed=seed, rate=rate, skew=skew, disorder=disorder_ms * mr.MILLISECOND)
    for folder, format in ((parquet, "parquet"), (json, "json")):
        if folder:
            count = files.write(folder, generator.events(events), batch=batch, format=format)
            click.echo(f"{events:,} events in {count} files of each stream in {folder}")
    if kafka:
        click.echo(f"{files.send(kafka, generator.events(events)):,} events sent to {kafka}")


if __name__ == "__main__":
    make()

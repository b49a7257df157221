"""Commit logs that a test writes by itself, and loses commits of."""

from collections.abc import Iterable, Sequence

from millrace.store import Commit, HardState, decode_segment, encode_segment
from millrace.store.checkpoint_format import file_name


def append(state: HardState, commits: Sequence[Commit]) -> list[bool]:
    """Put each commit as a segment of its own; return which were free."""
    return [
        state.commits.of_task(commit.computation, commit.number, commit.interval).put([commit])
        for commit in commits
    ]


def lose(state: HardState, computation: str, interval: int, numbers: Iterable[int]) -> None:
    """Take commits out of their segments, others than the lowest as well."""
    gone = {(interval, number) for number in numbers}
    blobs = state.blobs
    for name in blobs.names(f"commits/{file_name(computation)}"):
        there = list(decode_segment(blobs.read(name) or b""))
        left = [commit for commit in there if (commit.interval, commit.number) not in gone]
        if len(left) < len(there):
            blobs.remove([name])
            if left:
                blobs.put_if_absent(name, encode_segment(left, name))

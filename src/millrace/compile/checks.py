"""What is wrong with a pipeline, found before it runs and told all at once."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from millrace.compile.callables import callable_problems, method_problems
from millrace.compile.hooks import hook_problems
from millrace.compile.publishers import letters_on
from millrace.model.computation import Computation, state_cells
from millrace.model.declarations import Declarations, Evolution
from millrace.model.errors import PipelineError
from millrace.model.stream import ByRecord, KeyExtractor
from millrace.model.time import duration_us


def evolution_problems(name: str, computation: Computation, evolution: Evolution) -> list[str]:
    """Return what is wrong with what is said of a computation's earlier cells."""
    cells = state_cells(computation)
    found = [
        f"p.add(..., migrate={{{cell!r}: ...}}): computation {name!r} has no cell {cell!r}. Name "
        f"one of {sorted(cells)}, as it is called now."
        for cell in sorted(evolution.migrations.keys() - cells.keys())
    ]
    found += [
        f"computation {name!r} both has and drops the cell {cell!r}. Leave dropped=[{cell!r}] out "
        "to keep it; one that begins empty needs another name, or a start without it between."
        for cell in sorted(evolution.dropped & cells.keys())
    ]
    found += [
        f"computation {name!r} both has and renames the cell {cell.was!r}: {own!r} was it, too. "
        "Only one can keep its state."
        for own, cell in cells.items()
        if cell.was in cells or sum(one.was == cell.was for one in cells.values() if cell.was) > 1
    ]
    return found


def check_subscriptions(
    pipeline: Declarations,
    inputs: Mapping[str, Mapping[str, Any]],
    publishers: Mapping[str, Any],
    problems: list[str],
) -> None:
    """Add to ``problems`` what is wrong with inputs, outputs, sinks and the streams they name.

    Args:
        pipeline: As it is declared.
        inputs: Computation -> all streams that it reads, with key extractors.
        publishers: Stream -> all that feed it.
        problems: Gets them.
    """

    def known(stream: str, who: str) -> None:
        if stream not in publishers:
            close = get_close_matches(stream, publishers, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            problems.append(
                f"{who} subscribes to stream {stream!r}, which nobody injects or produces.{hint} "
                f"Known streams: {', '.join(sorted(publishers)) or 'none'}."
            )

    for name, computation in pipeline.computations.items():
        if not isinstance(computation.inputs, Mapping):
            problems.append(
                f"computation {name!r} declares inputs = {computation.inputs!r}. Each input needs "
                'a key extractor: inputs = {"searches": mr.by("query")}.'
            )
            continue
        if not isinstance(computation.outputs, Mapping):
            problems.append(
                f"computation {name!r} declares outputs = {computation.outputs!r}. Each output "
                'needs a record format: outputs = {"counts": Count}.'
            )
        if not computation.inputs and name not in pipeline.starts:
            problems.append(
                f"computation {name!r} has no inputs, so it would never run. "
                'Declare inputs = {"stream": mr.by("field")}; or give it keys, which begin by '
                "themselves and set timers: p.add(..., keys=[...])."
            )
        problems += hook_problems(name, computation, keys=name in pipeline.starts)
        problems += method_problems(name, computation)
        for stream, extractor in inputs[name].items():
            known(stream, f"computation {name!r}")
            if not isinstance(extractor, KeyExtractor):
                problems.append(
                    f"computation {name!r} has no key extractor for stream {stream!r} (it has "
                    f'{extractor!r}). Write {{"{stream}": mr.by("field")}}, '
                    "mr.by(lambda value: ...), or mr.by_key() to keep the producer's key."
                )
            elif isinstance(extractor, ByRecord):
                problems.append(
                    f"computation {name!r} takes the keys of stream {stream!r} {extractor!r}, and "
                    f"only a step sees records: .key_by({extractor.function!r}) before it, and "
                    "mr.by_key() here."
                )
            elif stream in publishers and (letters := letters_on(stream, publishers)):
                problems.append(
                    f"computation {name!r} subscribes to {stream!r}, which carries {letters}. "
                    f"Only stateless steps and sinks can: a computation's own {letters} would "
                    "come back to it."
                )
    problems += callable_problems(pipeline)
    for declaration in pipeline.sinks:
        known(declaration.stream, "a sink")
    for step in pipeline.steps:
        known(step.source, f"a {step.kind} step")
    fed = pipeline.injections or pipeline.steps
    if fed and not pipeline.computations and not pipeline.sinks:
        problems.append("it has neither computations nor sinks, so it would do nothing.")


def check_steps(pipeline: Declarations) -> None:
    """Refuse steps that lead back to where they began."""
    following: dict[str, list[str]] = {}
    for step in pipeline.steps:
        following.setdefault(step.source, []).append(step.target)

    def visit(stream: str, path: tuple[str, ...]) -> None:
        if stream in path:
            circle = " -> ".join([*path[path.index(stream) :], stream])
            raise PipelineError(
                f"{pipeline!r} has a cycle of stateless steps: {circle}. A record would run around "
                "it forever. Give one of the streams another name."
            )
        for target in following.get(stream, ()):
            visit(target, (*path, stream))

    for stream in following:
        visit(stream, ())


def checked_percentiles(name: str, computation: Computation) -> frozenset[int]:
    """Return the percentiles that a computation declares, or refuse those that are none."""
    for percentile in computation.percentiles:
        if type(percentile) is not int or not 1 <= percentile <= 99:
            raise PipelineError(
                f"computation {name!r}, percentiles = {computation.percentiles!r}: {percentile!r} "
                "is no percentile. Expected whole numbers from 1 to 99; 100, the low watermark "
                "itself, is always there."
            )
    return frozenset(computation.percentiles)


def late_bound_us(name: str, computation: Computation) -> int:
    """Return how far behind what it has shown a computation may produce, in microseconds."""
    try:
        return duration_us(computation.may_produce_late)
    except PipelineError as refused:
        raise PipelineError(
            f"computation {name!r}, may_produce_late = {computation.may_produce_late!r}: {refused} "
            "mr.UNBOUNDED_PAST allows any lateness."
        ) from None


def together(pipeline: Declarations, problems: list[str]) -> str:
    """Return one text of all problems."""
    if len(problems) == 1:
        return f"{pipeline!r}: {problems[0]}"
    lines = "\n".join(f"  {n}. {problem}" for n, problem in enumerate(problems, 1))
    return f"{pipeline!r} has {len(problems)} problems:\n{lines}"

"""The driver's side of the commit protocol: claim the checkpoint, begin an epoch, complete it.

Between the two it does not matter who runs the workers: the Harness calls them one after the other,
Spark spreads them over a cluster. Like the machine it reads no clock; what time it is, and what the
injectors publish, it is told.

Source: docs/architecture.md, "The commit protocol"; MillWheel 7.2 (the authority
journals what it knows).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from millrace.compile.topology import Topology, injector_name
from millrace.model.errors import CheckpointMismatch, ZombieWriter
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.store import Collectable, HardState
from millrace.watermark.authority import Authority
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.percentiles import Percentiles
from millrace.windmill.claims import (
    claim_of,
    registry_after,
    sources_changed,
    taken_up,
    under_known_names,
)
from millrace.windmill.counters import Counters, tell_first_late
from millrace.windmill.epoch_log import End, end_of
from millrace.windmill.fence import superseded_run
from millrace.windmill.history import History, Moment
from millrace.windmill.loads import Loads, take
from millrace.windmill.manifest import (
    Changes,
    Claim,
    Completion,
    Entry,
    LiveMark,
    Manifest,
    encode_entry,
    interval_map,
    partition_of,
)
from millrace.windmill.observed import Observed
from millrace.windmill.place import Place
from millrace.windmill.positions import Positions
from millrace.windmill.read_as import read_as
from millrace.windmill.replay import Result

# A claim is read by a start only, and must not hold up the collection of all that came since: a run
# repeats it after so many entries. The completion after it says where every interval stands; so a
# start reads as many entries at the most.
_CLAIM_ENTRIES = 200


class Epochs:
    """The epochs of one run.

    Args:
        topology: The pipeline.
        state: The checkpoint.
        intervals: Number of key intervals for each computation that the checkpoint does not know
            yet; a power of two.
        claim_entries: After how many entries of the log the claim is repeated; by default 200.

    Raises:
        CheckpointMismatch: The checkpoint belongs to another topology; nothing has been written.

    Attributes:
        state: The checkpoint.
        topology: The pipeline, under the numbers that this checkpoint knows it by.
        completed: Number of the last completed epoch; -1 before the first.
        open: The manifest of an epoch that was begun and not completed, to be retried.
        drained: Whether the input has ended for good.
        authority: Low watermarks and reports.
        positions: Where every key interval stands after the last completed epoch.
        counters: Computation -> counts since the beginning.
        loads: Computation -> what its intervals cost lately, as far as this process knows.
        observed: Injected streams since the beginning.
        history: The epochs that this process completed.
        places: Injected stream -> process of its injector -> how far it was read.
        base: The first batch of Spark's own offsets, which begin anew after live tasks.
        session: The last session of live tasks that is over and sealed; 0 if there was none.
        live: What live tasks left behind with the last completed epoch; None if it was not theirs.
    """

    def __init__(
        self,
        topology: Topology,
        state: HardState,
        *,
        intervals: int,
        claim_entries: int | None = None,
    ) -> None:
        end = end_of(state.epochs)
        self.state = state
        self.topology = topology = under_known_names(end.claim, topology)
        self._registry = registry_after(None, topology)
        self._log = state.epochs
        self.completed = -1
        self.drained = False
        self.open: Manifest | None = None
        self.counters = {spec.name: Counters() for spec in topology.computations}
        self.loads = {spec.name: Loads() for spec in topology.computations}
        self.observed = Observed()
        self.history = History()
        self.moved: dict[str, tuple[int, int]] = {}
        self.places: dict[str, dict[str, Place]] = {}
        self.base = 0
        self.live: LiveMark | None = None
        self.session = 0
        self.authority = Authority(topology)
        self._percentiles = Percentiles(topology, self.authority)
        self.positions = Positions(self.authority.bulletins)
        self._changed: Changes | None = None
        self._wall_time_us = 0
        self._claim_entries = claim_entries or _CLAIM_ENTRIES
        self._claim_entry = self._whole_entry = 0
        # Bytes not known to be in the log, what to do when they are; whether they perhaps are.
        self._unwritten: tuple[bytes, Callable[[], None]] | None = None
        self._tried = False
        self._last = 0
        earlier = self._recover(end, IntervalMap.uniform(intervals))
        self.generation = 1 + (earlier.generation if earlier is not None else 0)
        self._claim()

    def collectable(self) -> Collectable:
        """Return what lies behind the last completed epoch, for collection.

        Its numbers are looked up when they are wanted, maybe by another thread and later: what they
        say then is of a completed epoch, too.
        """
        first = min(self._claim_entry, self._whole_entry)
        dropped = frozenset(self._registry.dropped)
        return Collectable(self.positions.numbers, first, self.session, dropped=dropped)

    def superseded(self) -> ZombieWriter | None:
        """Return the error to end with if a newer run has claimed the checkpoint, else None."""
        return superseded_run(self.generation) if self._log.last() > self._last else None

    def interval_counts(self) -> dict[str, int]:
        """Return the number of key intervals of each computation."""
        return {name: len(intervals) for name, intervals in self.positions.maps.items()}

    def estimated(self, injectors: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Return what to publish for percentiles with the next epoch; see :class:`Percentiles`."""
        return self._percentiles.estimated(injectors, self.observed.ahead, self.completed + 1)

    def begin(
        self,
        epoch: int,
        *,
        wall_time_us: int,
        injectors: Mapping[str, int],
        draining: bool = False,
        percentiles: Mapping[int, Mapping[str, int]] | None = None,
        splitting: Mapping[str, str] | None = None,
        live: int = 0,
    ) -> Manifest | None:
        """Write and return the manifest of an epoch; None if the epoch is completed already.

        An epoch that was begun before gets the manifest it had then, whatever is asked for now.

        Args:
            epoch: The one after the last completed.
            wall_time_us: What time it is. If that is before the last epoch's time (a clock was set
                back), the epoch has the last one's.
            injectors: Injected stream -> low watermark that it publishes with this epoch's records.
            draining: Let every low watermark go to the end of time after this epoch's records.
            percentiles: Percentile -> injected stream -> what it publishes for that share; by
                default, and at least, its low watermark.
            splitting: Settings by which this epoch's input is cut into partitions.
            live: How many live tasks a level run it; 0 if none do.

        Raises:
            CheckpointMismatch: The epoch is not the next one.
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        self.settle()
        if self.open is not None and self.open.epoch == epoch:
            return self.open
        if self.open is None and epoch == self.completed:
            return None
        if self.open is not None or epoch != self.completed + 1:
            # A run that slept while another went on is not the one to complain of its offsets.
            superseded = self.superseded()
            if superseded is not None:
                raise superseded
            raise CheckpointMismatch(
                f"epoch {epoch} was asked for, but "
                + (
                    f"epoch {self.open.epoch} is unfinished. "
                    if self.open is not None
                    else f"epoch {self.completed} was the last to complete. "
                )
                + "Spark's offsets and Millrace's state have come apart: was one of their "
                "directories deleted or restored without the other? Restore both from one copy, "
                "or start with a new checkpoint."
            )
        if self._last - self._claim_entry >= self._claim_entries:
            self._claim()
        outputs = self.authority.low_watermarks.outputs
        published = {
            spec.name: MAX_TIMESTAMP
            if draining
            else max(injectors.get(spec.name, MIN_TIMESTAMP), outputs[injector_name(spec.name)])
            for spec in self.topology.injected()
        }
        manifest = Manifest(
            epoch=epoch,
            generation=self.generation,
            wall_time_us=max(wall_time_us, self._wall_time_us),
            injectors=published,
            percentiles=self._percentiles.published(published, percentiles or {}),
            draining=draining,
            before=self.authority.low_watermarks.copy(self.topology.percentiles),
            intervals=self._partitions,
            entry=self._last + 1,
            follows=self.positions.entry,
            changed=self._changed,
            splitting=dict(splitting or {}),
            edges=[edge.number for edge in self.topology.edges],
            live=live,
        )
        self._append(manifest, lambda: self._opened(manifest))
        return manifest

    def complete(
        self,
        manifest: Manifest,
        results: Collection[Result],
        observed: Observed,
        *,
        places: Mapping[str, Mapping[str, Place]] | None = None,
        live: LiveMark | None = None,
    ) -> Completion:
        """Record that an epoch is over and return what is known after it.

        Args:
            manifest: Of the epoch.
            results: One for each interval of each computation; an interval may be missing, and is
                then as it was.
            observed: What the epoch saw of the injected streams.
            places: How far processes of injectors were read, those that were.
            live: What live tasks leave behind.

        Raises:
            ZombieWriter: A newer run has claimed the checkpoint. Its outcome of the epoch is the
                same as this one's.
        """
        changed = Changes(self.positions.entry)
        for result in results:
            name, interval = result.computation, result.interval
            changed.reports.setdefault(name, {})[interval] = result.report
            if result.number:
                changed.numbers.setdefault(name, {})[interval] = result.number
                changed.chains.setdefault(name, {})[interval] = result.chain
            counters = self.counters[name]
            if counters.first_late is None and result.counters.first_late is not None:
                tell_first_late(self.topology.titles[name], result.counters.first_late)
            counters.add(result.counters)
        take(self.loads, results)
        self.observed.add(observed)
        self.observed.ahead = {s: ahead.faded() for s, ahead in self.observed.ahead.items()}
        shown = self.authority.low_watermarks.outputs
        after = self.authority.advance(
            manifest.injectors,
            changed.reports,
            (self.generation, manifest.epoch),
            manifest.percentiles,
        )
        self.moved |= {
            name: (manifest.epoch, manifest.wall_time_us)
            for name, us in after.outputs.items()
            if us != shown[name]
        }
        for stream, places_of in (places or {}).items():
            self.places.setdefault(stream, {}).update(places_of)
        whole = not self._whole_entry or self._claim_entry > self._whole_entry
        said = self.positions.every(changed) if whole else changed
        completion = Completion(
            epoch=manifest.epoch,
            generation=self.generation,
            drained=manifest.draining,
            wall_time_us=manifest.wall_time_us,
            after=after,
            intervals=manifest.intervals,
            since=None if whole else changed.since,
            numbers=said.numbers,
            chains=said.chains,
            reports=said.reports,
            newest=self.observed.newest,
            counters=self.counters,
            injected=self.observed.injected,
            refused=self.observed.refused,
            processes=self.observed.processes,
            ahead=self.observed.ahead,
            moved=self.moved,
            places=self.places,
            live=live,
            base=self.base,
        )
        self._append(completion, lambda: self._completed(completion, changed))
        return completion

    def settle(self) -> None:
        """Write what a call before this one could not, if there is something.

        A manifest that was refused is none yet; an epoch whose completion was refused is over all
        the same, and is complete when this has returned. Nothing is counted twice.

        Raises:
            CheckpointUnwritable: It is refused again.
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        if self._unwritten is None:
            return
        data, then = self._unwritten
        number = self._last + 1
        # A write that failed has perhaps been one all the same. Where none has failed, an equal
        # entry is another run's: two that start at once have equal claims.
        again, self._tried = self._tried, True
        if not self._log.append(number, data) and not (again and self._log.read(number) == data):
            raise superseded_run(self.generation)
        self._unwritten, self._tried, self._last = None, False, number
        then()

    def _opened(self, manifest: Manifest) -> None:
        self.open = manifest

    def _completed(self, completion: Completion, changed: Changes) -> None:
        self.history.add(Moment.of(completion, self._registry.called))
        if completion.since is None:
            self._whole_entry = self._last
        self.positions.add(changed, self._last)
        self._changed = changed
        self.completed = completion.epoch
        self._wall_time_us = completion.wall_time_us
        self.drained = completion.drained
        self.live = completion.live
        self.open = None

    def _claim(self) -> None:
        """Claim the checkpoint, or say again that it is claimed, so that older claims can go."""
        claim = claim_of(self.topology, self._registry, self.generation, self.base)
        self._append(claim, self._claimed)

    def _claimed(self) -> None:
        self._claim_entry = self._last

    def _append(self, entry: Entry, then: Callable[[], None]) -> None:
        assert self._unwritten is None, "what was refused is settled first"
        self._unwritten = encode_entry(entry), then
        self.settle()

    def _recover(self, end: End, uniform: IntervalMap) -> Claim | None:
        """Take up what the end of the log says; return the last claim."""
        self._last = end.last
        manifest = end.manifest
        if end.claim is not None:
            self.topology, self._registry, manifest = taken_up(end, self.topology)
        end, renamed = read_as(end, self.topology)
        completion = end.completion
        maps = dict.fromkeys(self.authority.bulletins, uniform)
        # What else they say is of computations that were dropped since.
        for said in (completion, manifest):
            known = {} if said is None else said.intervals
            maps |= {name: interval_map(known[name]) for name in maps.keys() & known.keys()}
        self.positions.cover(maps)
        self._partitions = {name: partition_of(intervals) for name, intervals in maps.items()}
        if completion is not None:
            self._take_up(completion)
            if end.claim is not None:
                self.base = max(self.base, end.claim.base)
                if manifest is None and (renamed or sources_changed(end.claim, self.topology)):
                    self.base = self.completed + 1
            self.positions.add(completion, end.completed)
            self._whole_entry = end.whole
        self.positions.settle()
        self.open = manifest
        return end.claim

    def _take_up(self, completion: Completion) -> None:
        self.completed = completion.epoch
        self.drained = completion.drained
        self._wall_time_us = completion.wall_time_us
        self.authority.restore(
            completion.after, completion.reports, (completion.generation, completion.epoch)
        )
        there = self.counters.keys() & completion.counters.keys()
        self.counters |= {name: completion.counters[name] for name in there}
        self.observed = Observed.until(completion).of(
            {spec.name for spec in self.topology.injected()}
        )
        shown = self.authority.low_watermarks.outputs
        self.moved = {name: at for name, at in completion.moved.items() if name in shown}
        self.places = {stream: dict(of) for stream, of in completion.places.items()}
        self.live = completion.live
        self.base = completion.base if self.live is None else completion.epoch + 1

"""The driver's side of the commit protocol: claim the checkpoint, begin an epoch, complete it.

Between the two it does not matter how workers run: the Harness calls them one after the other,
Spark spreads them over a cluster. Like the machine it reads no clock: callers pass the time.

Each entry that :class:`LogWriter` appends to the epoch log has the number after the last. It is put
only if its number is free, so a driver that was superseded finds its number taken. One that the
store refused is kept, and written before anything else.

Source: docs/architecture.md, "The commit protocol"; MillWheel 6.2 (sequencers), 7.2 (what the
authority keeps).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from typing import Protocol, Required, TypedDict, TypeVar, Unpack
from uuid import uuid4

from msgspec.structs import replace

from millrace.compile.topology import Topology, injector_name
from millrace.epochlog import claims
from millrace.epochlog.entries import (
    Changes,
    Completion,
    Entry,
    LiveMark,
    Manifest,
    Restoration,
    Sources,
    SourceStats,
    add_sources,
    ahead_of,
    encode_entry,
    interval_maps,
    partition_of,
)
from millrace.epochlog.fence import out_of_step, superseded_run
from millrace.epochlog.history import Moment, WatermarkHistory
from millrace.epochlog.positions import Positions
from millrace.epochlog.reader import LogTail, end_of
from millrace.epochlog.renames import read_as
from millrace.injectors.offsets import Offsets, SourceOffset, over
from millrace.kernel.results import Counters, IntervalResult, count
from millrace.kernel.user_errors import DeadLetterWatch, tell_first, total
from millrace.model.errors import StoreError, ZombieWriter
from millrace.model.time import MAX_TIMESTAMP, MIN_TIMESTAMP
from millrace.store import Collectable, EpochLog, Given, HardState
from millrace.watermark.authority import Authority, Percentiles
from millrace.watermark.intervals import IntervalMap
from millrace.watermark.map_change import Remapped

_Made = TypeVar("_Made")


class LogWriter:
    """Appends to an epoch log in the name of one run.

    Attributes:
        last: Number of the last entry that is known.
        generation: Of the run.
    """

    def __init__(self, log: EpochLog, last: int, generation: int) -> None:
        self._log = log
        self.last = last
        self.generation = generation
        # Bytes that are perhaps not in the log, and what to do when they are.
        self._unwritten: tuple[bytes, Callable[[], None]] | None = None

    def append(self, entry: Entry, then: Callable[[], None]) -> None:
        """Write an entry, and do something once it is in the log.

        Raises:
            CheckpointUnwritable: It is refused, and :meth:`settle` writes it.
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        assert self._unwritten is None, "what was refused is settled first"
        self._unwritten = encode_entry(entry), then
        self.settle()

    def settle(self) -> None:
        """Write what could not be written before, if there is something; see :meth:`append`."""
        if self._unwritten is None:
            return
        data, then = self._unwritten
        number = self.last + 1
        # A write that failed has perhaps been one all the same. No other run has an equal entry:
        # claims have owners, and all others the generation of a claim.
        if not self._log.append(number, data) and not self._log.has(number, data):
            raise superseded_run(self.generation)
        self._unwritten, self.last = None, number
        then()

    def ours(self, work: Callable[[], _Made]) -> _Made:
        """Return what some work makes of the checkpoint while no newer run may change it.

        Raises:
            ZombieWriter: It failed, and a newer run has claimed the checkpoint: what the work was
                to read has perhaps been collected.
        """
        try:
            return work()
        except StoreError as error:
            zombie = None
            with suppress(StoreError):  # who cannot know says what has happened here
                zombie = self.superseded()
            if zombie is not None:
                raise zombie from error
            raise

    def superseded(self) -> ZombieWriter | None:
        """Return the error to end with if a newer run has claimed the checkpoint, else None."""
        generation = self.last
        if self._unwritten is not None and self._log.read(generation + 1) == self._unwritten[0]:
            generation += 1  # it was written, and the store said that it was not
        return superseded_run(self.generation) if self._log.last() > generation else None


# A claim must not hold up the collection of all that came since: a run repeats it after so many
# entries. The completion after it says where every interval stands; so a start reads as many.
_CLAIM_ENTRIES = 200

_NO_SOURCES: Mapping[str, SourceStats] = {}
_NO_INJECTORS: Mapping[str, int] = {}


class EpochRequest(TypedDict, total=False):
    """What an epoch is to be like.

    Attributes:
        wall_time_us: What time it is; of a clock that was set back, the last epoch's time.
        injectors: Injected stream -> low watermark that it publishes with this epoch's records.
        draining: Let every low watermark go to the end of time after this epoch's records.
        percentiles: Percentile -> injected stream -> what it publishes; at least its low one.
        splitting: Settings by which the input is cut into partitions.
        offsets: Where the epoch ends, of the streams that the driver reads.
        live: How many live tasks a level run it; 0 if none do.
        tasks: How many that end with it; 0 if none do.
    """

    wall_time_us: Required[int]
    injectors: Required[Mapping[str, int]]
    draining: bool
    percentiles: Mapping[int, Mapping[str, int]] | None
    splitting: Mapping[str, str] | None
    offsets: Mapping[str, Offsets]
    live: int
    tasks: int


class EpochObserver(Protocol):
    """Follows the epochs of a run, of which it is soft state: a run that starts has a new one."""

    def epoch_completed(self, results: Iterable[IntervalResult]) -> None:
        """Take the results of an epoch that is about to be completed."""
        ...

    def remapped(self, made: Mapping[str, Remapped]) -> None:
        """Take computation -> its key intervals, which were split and merged."""
        ...


class RunLog:
    """The epochs of one run.

    Args:
        topology: The pipeline.
        state: The checkpoint.
        intervals: Number of key intervals for each computation that the checkpoint does not know
            yet; a power of two.
        claim_entries: After how many entries of the log the claim is repeated; by default 200.
        end: Of the epoch log, as it was looked at before; by default it is looked at now.
        owner: See :class:`~millrace.epochlog.entries.Claim`; by default one of its own.

    Raises:
        CheckpointMismatch: The checkpoint belongs to another topology; nothing has been written.
        ZombieWriter: Another run has claimed it, or gone on, since its end was looked at.

    Attributes:
        state: The checkpoint.
        topology: The pipeline, under the numbers that this checkpoint knows it by.
        registry: Those numbers.
        completed: Number of the last completed epoch; -1 before the first.
        open: The manifest of an epoch that was begun and not completed, to be retried.
        drained: Whether the input has ended for good.
        authority: Low watermarks and reports.
        positions: Where every key interval stands after the last completed epoch.
        counters: Computation -> counts since the beginning.
        sources: Injected stream -> what was observed of it since the beginning.
        history: The epochs that this process completed.
        source_offsets: Injected stream -> process of its injector -> how far it was read.
        base: The first batch of Spark's own offsets, which begin anew after live tasks.
        incarnation: The last of live tasks that is over and sealed; 0 if there was none.
        live: What live tasks left behind with the last completed epoch; None if it was not theirs.
        restored: What sinks are to take back before the next epoch; None if nothing.
        observer: Follows the epochs from now on; None if nobody does.
        dead_letters: Those of this run, against the limit that its pipeline declares.
    """

    def __init__(
        self,
        topology: Topology,
        state: HardState,
        *,
        intervals: int,
        claim_entries: int | None = None,
        end: LogTail | None = None,
        owner: str | None = None,
    ) -> None:
        end = end_of(state.epochs) if end is None else end
        self.state = state
        self._owner = owner or uuid4().hex
        self.topology = topology = claims.under_known_names(end.claim, topology)
        self.registry = claims.registry_after(None, topology)
        self.completed = -1
        self.drained = False
        self.open: Manifest | None = None
        self.counters = {spec.name: Counters() for spec in topology.computations}
        self.sources: Sources = {}
        self.history = WatermarkHistory()
        self.moved: dict[str, tuple[int, int]] = {}
        self.source_offsets: dict[str, dict[str, SourceOffset]] = {}
        self.base = self.incarnation = 0
        self.live: LiveMark | None = None
        self.restored: Restoration | None = None
        self.dead_letters = DeadLetterWatch(topology.dead_letter_limit)
        self.authority = Authority(topology)
        self._percentiles = Percentiles(topology, self.authority)
        self.positions = Positions(self.authority.bulletins)
        self._changed: Changes | None = None
        self._claim_entries = claim_entries or _CLAIM_ENTRIES
        self.observer: EpochObserver | None = None
        self.wall_time_us = self._claim_entry = self._whole_entry = 0
        self.generation = 1 + (0 if end.claim is None else end.claim.generation)
        self._log = LogWriter(state.epochs, end.last, self.generation)
        self._ids = {} if end.claim is None else dict(end.claim.ids)
        self._taken_back = [] if end.claim is None else [*end.claim.taken_back]
        self._recover(end, IntervalMap.uniform(intervals))
        self._settled_ids = self._ids
        self._claim()

    def collectable(self) -> Collectable:
        """Return what lies behind the last completed epoch, for collection.

        Its numbers are looked up later, maybe by another thread, and are of a completed epoch then.
        """
        first = min(self._claim_entry, self._whole_entry)
        maps, ids = self.positions.maps, self._settled_ids
        reserved = {n: Given(ids[n], frozenset(maps[n].places if n in maps else ())) for n in ids}
        gone = frozenset(self.registry.dropped)
        return Collectable(
            self.positions.numbers, first, self.incarnation, dropped=gone, given=reserved
        )

    def superseded(self) -> ZombieWriter | None:
        """Return the error to end with if a newer run has claimed the checkpoint, else None."""
        return self._log.superseded()

    def estimated(self, injectors: Mapping[str, int]) -> dict[int, dict[str, int]]:
        """Return what to publish for percentiles with the next epoch; see :class:`Percentiles`."""
        return self._percentiles.estimated(injectors, ahead_of(self.sources), self.completed + 1)

    def begin(self, epoch: int, **asked: Unpack[EpochRequest]) -> Manifest | None:
        """Write and return the manifest of an epoch; None if the epoch is completed already.

        See :meth:`planned`, which takes the same.
        """
        manifest = self.planned(epoch, **asked)
        if manifest is not None:
            self.write(manifest)
        return manifest

    def planned(self, epoch: int, **asked: Unpack[EpochRequest]) -> Manifest | None:
        """Return the manifest of an epoch, unwritten; None if the epoch is completed already.

        An epoch that was begun before gets the manifest it had then, whatever is asked for now.
        One that no task runs needs none in the log: nothing of it is there before its completion.

        Args:
            epoch: The one after the last completed.
            asked: What it is to be like.

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
            raise self.superseded() or out_of_step(epoch, self.open, self.completed)
        self.renew_claim()
        injectors, draining = asked["injectors"], asked.get("draining", False)
        if draining:
            injectors = {spec.name: MAX_TIMESTAMP for spec in self.topology.injected()}
        wall_us = max(asked["wall_time_us"], self.wall_time_us)
        return replace(
            self._manifest(epoch, wall_us, injectors, asked.get("percentiles")),
            draining=draining,
            changed=self._changed,
            splitting=dict(asked.get("splitting") or {}),
            offsets=dict(asked.get("offsets", {})),
            live=asked.get("live", 0),
            tasks=asked.get("tasks", 0),
        )

    def write(self, manifest: Manifest) -> None:
        """Write what :meth:`planned` has returned, before a task gets it, unless it is there.

        Raises:
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        if self.open is None:
            self._log.append(manifest, lambda: self._opened(manifest))

    def _manifest(
        self,
        epoch: int,
        wall_time_us: int,
        injectors: Mapping[str, int] = _NO_INJECTORS,
        percentiles: Mapping[int, Mapping[str, int]] | None = None,
    ) -> Manifest:
        """Return what the next entry says of an epoch, as far as every epoch has it."""
        outputs = self.authority.low_watermarks.outputs
        published = {
            spec.name: max(
                injectors.get(spec.name, MIN_TIMESTAMP), outputs[injector_name(spec.name)]
            )
            for spec in self.topology.injected()
        }
        return Manifest(
            epoch=epoch,
            generation=self.generation,
            wall_time_us=wall_time_us,
            injectors=published,
            percentiles=self._percentiles.published(published, percentiles or {}),
            draining=False,
            before=self.authority.low_watermarks.copy(self.topology.percentiles),
            intervals=self._partitions,
            entry=self._log.last + 1,
            follows=self.positions.entry,
            edges=[edge.number for edge in self.topology.edges],
        )

    def renew_claim(self) -> None:
        """Claim the checkpoint again after so many entries that those before could go."""
        if self._log.last - self._claim_entry >= self._claim_entries:
            self._claim()

    def complete(
        self,
        manifest: Manifest,
        results: Collection[IntervalResult],
        sources: Mapping[str, SourceStats] = _NO_SOURCES,
        *,
        source_offsets: Mapping[str, Mapping[str, SourceOffset]] | None = None,
        live: LiveMark | None = None,
        goes_on: bool = False,
        by_tasks: bool = True,
    ) -> Completion:
        """Record that an epoch is over and return what is known after it.

        Args:
            manifest: Of the epoch.
            results: One for each interval of each computation; an interval may be missing, and is
                then as it was.
            sources: Injected stream -> what the epoch observed of it.
            source_offsets: How far processes of injectors were read, those that were.
            live: What live tasks leave behind.
            goes_on: Whether they are in the next epoch already, which begins with this entry.
            by_tasks: Whether tasks have run it. If none did, nothing has changed, and they stand
                where the epoch before found them.

        Raises:
            ZombieWriter: A newer run has claimed the checkpoint. Its outcome of the epoch is the
                same as this one's.
        """
        changed = Changes.of(results, self.positions.entry)
        count(self.counters, [(r.computation, r.counters) for r in results], self.topology.titles)
        if self.observer is not None:
            self.observer.epoch_completed(results)
        for stream, stats in sources.items():
            known = self.sources.get(stream)
            if stats.letters and not (known and known.letters):
                tell_first(f"stream {stream!r}", stats.letters)
        letters = [stats.letters for stats in sources.values()]
        self.dead_letters.add(
            manifest.wall_time_us,
            sum(stats.records for stats in sources.values()) + sum(map(total, letters)),
            (*letters, *(result.counters.reasons for result in results)),
        )
        add_sources(self.sources, sources)
        for stats in self.sources.values():
            if stats.ahead is not None:
                stats.ahead = stats.ahead.faded()
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
        for stream, offsets_of in (source_offsets or {}).items():
            self.source_offsets.setdefault(stream, {}).update(offsets_of)
        if manifest.offsets.keys() >= {spec.name for spec in self.topology.injected()}:
            self.base = manifest.epoch + 1  # Spark has no offsets of it
        whole = not self._whole_entry or self._claim_entry > self._whole_entry
        said = self.positions.every(changed) if whole else changed
        completion = self._completion(
            said, manifest.epoch, manifest.wall_time_us, drained=manifest.draining, live=live
        )
        if goes_on:
            begun = self._manifest(manifest.epoch + 1, manifest.wall_time_us)
            begun.follows, begun.live = begun.entry, manifest.live
            completion.begins = begun
        self._log.append(
            completion, lambda: self._completed(completion, changed, by_tasks=by_tasks)
        )
        return completion

    def forget_ended(self, there: Mapping[str, Iterable[str]]) -> None:
        """Forget the processes of injectors that have ended, and are gone.

        Args:
            there: Injected stream -> names of the processes that there are now.
        """
        if self.open is not None and not self.open.live:
            return  # it may read them
        for stream, names in there.items():
            injection = self.topology.streams[stream].injection
            expected = () if injection is None else injection.expected
            ended = over(self.source_offsets.get(stream, {}), {*names, *expected})
            if not ended:
                continue
            # Others look at them meanwhile.
            offsets = self.source_offsets[stream]
            self.source_offsets[stream] = {
                name: offsets[name] for name in offsets if name not in ended
            }
            if (stats := self.sources.get(stream)) is not None:
                states = stats.processes
                stats.processes = {name: states[name] for name in states if name not in ended}

    @property
    def ids(self) -> Mapping[str, int]:
        """Computation -> the first id that no key interval of it was given; see the claim."""
        return self._ids

    def replace_maps(
        self, made: Mapping[str, Remapped], carried: Callable[[Completion], Completion]
    ) -> None:
        """Replace key intervals by others, between two epochs.

        A claim reserves the ids of the new ones, and a completion has the new maps.

        Args:
            made: Computation -> its new map.
            carried: Takes the completion of all intervals as they are; writes the snapshots of
                the new ones, and returns the completion with them.

        Raises:
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        self._ids = claims.ids_after(self._ids, made)
        self._claim()
        whole = self.current_completion()
        completion = self._log.ours(lambda: carried(whole))
        self._log.append(completion, lambda: self._remapped(completion, made))

    def current_completion(self) -> Completion:
        """Return what a completion would say now, after the last completed epoch, of all."""
        every = self.positions.every(Changes(None))
        said = self._completion(every, self.completed, self.wall_time_us, live=self.live)
        return replace(said, restored=self.restored)

    def _completion(
        self,
        said: Changes,
        epoch: int,
        wall_time_us: int,
        *,
        drained: bool = False,
        live: LiveMark | None = None,
    ) -> Completion:
        return Completion(
            epoch=epoch,
            generation=self.generation,
            drained=drained,
            wall_time_us=wall_time_us,
            after=self.authority.low_watermarks,
            intervals=self._partitions,
            since=said.since,
            numbers=said.numbers,
            chains=said.chains,
            reports=said.reports,
            counters=self.counters,
            sources=self.sources,
            moved=self.moved,
            source_offsets=self.source_offsets,
            live=live,
            base=self.base,
        )

    def settle(self) -> None:
        """Write what a call before this one could not, if there is something.

        A manifest that was refused is none yet; an epoch is complete when this has returned.

        Raises:
            CheckpointUnwritable: It is refused again.
            ZombieWriter: A newer run has claimed the checkpoint.
        """
        self._log.settle()

    def _opened(self, manifest: Manifest) -> None:
        self.open = manifest

    def _completed(self, completion: Completion, changed: Changes, *, by_tasks: bool) -> None:
        self.history.add(Moment.of(completion, self.registry.called))
        if completion.since is None:
            self._whole_entry = self._log.last
        self.positions.add(changed, self._log.last)
        if by_tasks:
            self._changed = changed
        self.completed = completion.epoch
        self.wall_time_us = completion.wall_time_us
        self.drained = completion.drained
        self.live = completion.live
        self.restored = None
        begun = completion.begins
        self.open = None if begun is None else replace(begun, changed=changed)

    def _claim(self) -> None:
        """Claim the checkpoint, or say again that it is claimed, so that older claims can go."""
        claim = claims.claim_of(
            self.topology,
            self.registry,
            self.generation,
            self.base,
            self._ids,
            self._taken_back,
            self._owner,
        )
        self._log.append(claim, self._claimed)

    def _claimed(self) -> None:
        self._claim_entry = self._log.last

    def _remapped(self, completion: Completion, made: Mapping[str, Remapped]) -> None:
        for name, remap in made.items():
            self.positions.remap(name, remap.intervals, completion)
        self.positions.entry = self._whole_entry = self._log.last
        self._partitions, self._changed = completion.intervals, None
        self._settled_ids = self._ids
        if self.observer is not None:
            self.observer.remapped(made)

    def _recover(self, end: LogTail, uniform: IntervalMap) -> None:
        """Take up what the end of the log says."""
        manifest = end.manifest
        if end.claim is not None:
            self.topology, self.registry, manifest = claims.taken_up(end, self.topology)
        end, renamed = read_as(end, self.topology)
        completion = end.completion
        maps = interval_maps(self.authority.bulletins, uniform, (completion, manifest), self._ids)
        self.positions.cover(maps)
        self._partitions = {name: partition_of(intervals) for name, intervals in maps.items()}
        if completion is not None:
            self._take_up(completion)
            if end.claim is not None:
                self.base = max(self.base, end.claim.base)
                if manifest is None and (
                    renamed or claims.sources_changed(end.claim, self.topology)
                ):
                    self.base = self.completed + 1
            self.positions.add(completion, end.completed)
            self._whole_entry = end.whole
        self.positions.settle()
        self.open = manifest

    def _take_up(self, completion: Completion) -> None:
        self.completed = completion.epoch
        self.drained = completion.drained
        self.wall_time_us = completion.wall_time_us
        self.authority.restore(
            completion.after, completion.reports, (completion.generation, completion.epoch)
        )
        there = self.counters.keys() & completion.counters.keys()
        self.counters |= {name: completion.counters[name] for name in there}
        injected = {spec.name for spec in self.topology.injected()}
        self.sources = {
            name: stats for name, stats in completion.sources.items() if name in injected
        }
        shown = self.authority.low_watermarks.outputs
        self.moved = {name: at for name, at in completion.moved.items() if name in shown}
        self.source_offsets = {
            stream: dict(offsets) for stream, offsets in completion.source_offsets.items()
        }
        self.live = completion.live
        self.restored = completion.restored
        if self.restored is not None and self.restored not in self._taken_back:
            self._taken_back.append(self.restored)
        self.base = completion.base if self.live is None else completion.epoch + 1

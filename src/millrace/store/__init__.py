"""Hard state: the commit log and epoch log that everything else can be rebuilt from, and caches.

Byte formats: ``docs/design/2026-11-20-store-format.md``.
"""

from millrace.store.blobs import Appender, Blobs
from millrace.store.cache import (
    ROW_BYTES_MAX,
    Cache,
    CachePosition,
    Caches,
    MemoryCache,
    MemoryCaches,
    Size,
    View,
)
from millrace.store.cache_eviction import CacheLimit
from millrace.store.collection import Collectable, Collected, Collector, Given
from millrace.store.commit import COMMIT_BYTES, Commit, Identity, chain_of
from millrace.store.commit_log import CommitLog, TaskCommits
from millrace.store.epoch_log import EpochLog
from millrace.store.hard_state import HardState, looked_at
from millrace.store.incarnations import GrownSegment, Incarnations, Seal, SegmentName
from millrace.store.lmdb_cache import LmdbCache, LmdbCaches
from millrace.store.local_blobs import LocalBlobs
from millrace.store.local_hard_state import LocalHardState
from millrace.store.location import (
    is_object_store,
    local_path,
    location_of,
    mailbox_at,
    open_location,
)
from millrace.store.mailbox import Mailbox, MailboxWatch
from millrace.store.memory_blobs import MemoryBlobs, MemoryHardState
from millrace.store.object_blobs import BucketOptions, BucketUrl, ObjectBlobs
from millrace.store.object_hard_state import ObjectHardState
from millrace.store.repair import NOTHING, Repair, bring
from millrace.store.segments import CommitGroup, decode_segment, encode_segment
from millrace.store.snapshot_writer import (
    SnapshotPolicy,
    SnapshotStats,
    SnapshotWriter,
    write_if_due,
)
from millrace.store.snapshots import SnapshotHead, Snapshots, decode_snapshot, encode_snapshot
from millrace.store.verification import (
    Finding,
    Verified,
    verify_epochs,
    verify_incarnations,
    verify_interval,
    verify_segments,
)
from millrace.store.write_buffer import KEPT_TURNS, AheadCache, AheadCaches, OverView

__all__ = [
    "COMMIT_BYTES",
    "KEPT_TURNS",
    "NOTHING",
    "ROW_BYTES_MAX",
    "AheadCache",
    "AheadCaches",
    "Appender",
    "Blobs",
    "BucketOptions",
    "BucketUrl",
    "Cache",
    "CacheLimit",
    "CachePosition",
    "Caches",
    "Collectable",
    "Collected",
    "Collector",
    "Commit",
    "CommitGroup",
    "CommitLog",
    "EpochLog",
    "Finding",
    "Given",
    "GrownSegment",
    "HardState",
    "Identity",
    "Incarnations",
    "LmdbCache",
    "LmdbCaches",
    "LocalBlobs",
    "LocalHardState",
    "Mailbox",
    "MailboxWatch",
    "MemoryBlobs",
    "MemoryCache",
    "MemoryCaches",
    "MemoryHardState",
    "ObjectBlobs",
    "ObjectHardState",
    "OverView",
    "Repair",
    "Seal",
    "SegmentName",
    "Size",
    "SnapshotHead",
    "SnapshotPolicy",
    "SnapshotStats",
    "SnapshotWriter",
    "Snapshots",
    "TaskCommits",
    "Verified",
    "View",
    "bring",
    "chain_of",
    "decode_segment",
    "decode_snapshot",
    "encode_segment",
    "encode_snapshot",
    "is_object_store",
    "local_path",
    "location_of",
    "looked_at",
    "mailbox_at",
    "open_location",
    "verify_epochs",
    "verify_incarnations",
    "verify_interval",
    "verify_segments",
    "write_if_due",
]

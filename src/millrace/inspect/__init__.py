"""One read model of a checkpoint: the typed view that commands, status and pictures share.

Nothing here needs Spark or the pipeline's code, or claims a checkpoint; what is written are copies
of one, and leases on it.
"""

from millrace.compile.state_values import Encoded
from millrace.inspect.checkpoint import Checkpoint, open_checkpoint, read_latest, sizes, state_at
from millrace.inspect.checkpoint_copies import (
    add_savepoint,
    check_savepoint,
    copy_checkpoint,
    remap_checkpoint,
    remove_savepoint,
    restore_checkpoint,
    savepoints,
)
from millrace.inspect.columns import WHAT, batches, columns_of, rows_of
from millrace.inspect.computation import (
    ComputationInspection,
    Interval,
    StateDifference,
    windows_in,
)
from millrace.inspect.dead_letters import send_dead_letters
from millrace.inspect.interval_state import (
    DeliveredIds,
    PendingHold,
    PendingTimer,
    WindowState,
)
from millrace.inspect.json_text import as_json, key_text, key_value, keys_of, shortened
from millrace.inspect.lease import Lease
from millrace.inspect.overview import (
    ComputationLoad,
    KeyShare,
    Overview,
    StreamOverview,
    load_of_run,
    overview_of_run,
)
from millrace.inspect.watermark import Hop, Pin, WatermarkExplanation, explain_watermark

__all__ = [
    "ComputationLoad",
    "KeyShare",
    "WHAT",
    "StateDifference",
    "Checkpoint",
    "ComputationInspection",
    "DeliveredIds",
    "Encoded",
    "WatermarkExplanation",
    "Hop",
    "Interval",
    "Lease",
    "Overview",
    "PendingHold",
    "PendingTimer",
    "Pin",
    "StreamOverview",
    "WindowState",
    "add_savepoint",
    "as_json",
    "batches",
    "check_savepoint",
    "columns_of",
    "copy_checkpoint",
    "explain_watermark",
    "key_text",
    "key_value",
    "keys_of",
    "open_checkpoint",
    "load_of_run",
    "overview_of_run",
    "read_latest",
    "rows_of",
    "remap_checkpoint",
    "remove_savepoint",
    "restore_checkpoint",
    "savepoints",
    "send_dead_letters",
    "shortened",
    "sizes",
    "state_at",
    "windows_in",
]

"""Operations: what is done to a checkpoint, beside its run or without one."""

from millrace.balance.policy import Balance
from millrace.inspect import (
    add_savepoint,
    copy_checkpoint,
    open_checkpoint,
    remap_checkpoint,
    remove_savepoint,
    restore_checkpoint,
    savepoints,
    send_dead_letters,
)
from millrace.watermark.map_change import Merge, Split

__all__ = [
    "Balance",
    "Merge",
    "Split",
    "add_savepoint",
    "copy_checkpoint",
    "open_checkpoint",
    "remap_checkpoint",
    "remove_savepoint",
    "restore_checkpoint",
    "savepoints",
    "send_dead_letters",
]
